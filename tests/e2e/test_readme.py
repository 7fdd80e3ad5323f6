"""Every command in the README, run as it stands there, in a checkout of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from running import MODEL_FILE, environment, model_dir, wait_for

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout under another path, with the environment that is there already."""
    folder = tmp_path_factory.mktemp("readme") / "a clone"
    folder.mkdir()
    for name in ("dev", "pyproject.toml", "uv.lock", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("src", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    (folder / ".dev").mkdir()
    said = subprocess.run(
        ["sh", "-c", '{ cat uv.lock pyproject.toml; printf "%s\\n" "$PWD" test; } | cksum'],
        cwd=folder.resolve(),
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / ".dev" / "synced-test").write_text(said.stdout)
    models = folder.parent / "models"
    models.mkdir()
    (models / "my-model.gguf").symlink_to(model_dir() / MODEL_FILE)
    return folder


class Shell:
    """Runs lines of the README and remembers which."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.env = environment(HOME=str(checkout.parent))
        self.done: set[str] = set()

    def _line(self, line: str) -> str:
        assert line in COMMANDS, f"the README does not say: {line}"
        self.done.add(line)
        up = self.checkout / ".roost" / "up.json"
        if up.exists():  # the ports that the README names may be taken here
            ready = json.loads(up.read_text())
            line = line.replace("http://127.0.0.1:7400", ready["api"])
            line = line.replace("http://127.0.0.1:7480", ready["gateway"])
        return line

    def run(self, line: str, **env: str) -> str:
        return self._run(self._line(line), env)

    def run_from_text(self, line: str) -> str:
        """One that stands in a sentence."""
        assert f"`{line}`" in README
        return self._run(line, {})

    def _run(self, line: str, env: Mapping[str, str]) -> str:
        ran = subprocess.run(
            ["sh", "-c", line],
            cwd=self.checkout,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    @contextmanager
    def running(self, line: str, until: str, **env: str) -> Iterator[Path]:
        """A command that stays in the foreground: started, seen to say `until`, ended by Ctrl-C."""
        out = self.checkout.parent / f"out-{len(self.done)}"
        with out.open("wb") as stream:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {self._line(line)}"],
                cwd=self.checkout,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:

            def said() -> bool:
                assert process.poll() is None, out.read_text()
                return until in out.read_text()

            wait_for(said, limit_s=100)
            yield out
        finally:
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(90) == 0, out.read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README uses curl")
@pytest.mark.timeout(400)
def test_every_command_of_the_readme_works_as_written(checkout: Path) -> None:
    shell = Shell(checkout)
    with shell.running("./dev demo", "Serving until Ctrl-C") as out:
        said = out.read_text()
        assert "tokens/s" in said
        assert "smollm2" in shell.run("./dev roost ctl models")
        assert "ready" in shell.run("./dev roost ctl nodes")
        assert "smollm2-0" in shell.run("./dev roost ctl replicas")
        assert "cpu" in shell.run("./dev roost ctl explain smollm2")
        assert shell.run("./dev roost ctl logs smollm2-0").strip()
        pasted = re.search(r"^  (curl .*?\n.*)$", said, re.MULTILINE)
        assert pasted is not None
        answered = subprocess.run(
            ["sh", "-c", pasted.group(1)], capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(answered.stdout)["choices"]
    shutil.rmtree(checkout / ".roost")

    (checkout / "catalog.yaml").write_text(blocks("yaml")[0])
    with shell.running("./dev up --model-dir ~/models", "gateway "):
        shell.run("./dev roost ctl apply -f catalog.yaml --wait")
        key = shell.run("./dev roost ctl keys create laptop")
        word = re.search(r"roost-\S+", key)
        assert word is not None
        listing = shell.run(
            'curl http://127.0.0.1:7480/v1/models -H "Authorization: Bearer $ROOST_KEY"',
            ROOST_KEY=word.group(),
        )
        assert "my-model" in listing
        shell.run_from_text("./dev roost ctl nodes -o json >fleet.json")
        assert "my-model" in shell.run("./dev roost plan --fleet fleet.json --catalog catalog.yaml")
        assert "my-model" in shell.run("./dev roost ctl plan -f catalog.yaml")
        printed = shell.run("./dev roost ctl token create")
        token = re.fullmatch(r"roost agent --server \S+ --join (roost-join-\S+)\n", printed)
        assert token is not None, printed
        assert "the token in it,\n`roost-join-…`, is `ROOST_TOKEN`" in README
        with shell.running(
            "./dev roost agent --dir .roost-second --name second --server http://127.0.0.1:7400"
            ' --join "$ROOST_TOKEN"',
            "",
            ROOST_TOKEN=token.group(1),
        ):
            wait_for(lambda: "second" in shell.run("./dev roost ctl nodes"))
            shell.run_from_text("./dev roost ctl drain second")

    assert "collected" in shell.run("./dev test", PYTEST_ADDOPTS="--collect-only -q")
    shell.run("./dev clean")
    assert not (checkout / ".venv").exists()
    assert shell.done == set(COMMANDS)
