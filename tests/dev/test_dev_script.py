"""`./dev` on machines that lack something: it says what, and how to get it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SH = shutil.which("dash") or "/bin/sh"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As little of the repository as the script reads, in a folder with a space."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ("dev", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(
    checkout: Path, *words: str, path: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the script with nothing but the tools of POSIX and the `path` given on PATH."""
    if path is None:
        path = tools(checkout.parent / "bin", python=sys.executable)
    clean = {"PATH": str(path), "HOME": str(checkout.parent), **env}
    return subprocess.run(
        [SH, str(checkout / "dev"), *words],
        env=clean,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def tools(folder: Path, python: str | None = None) -> Path:
    """A PATH with the POSIX tools that the script may use, and a python3 or none."""
    folder.mkdir(exist_ok=True)
    for tool in (
        "sh",
        "dirname",
        "cat",
        "cksum",
        "sed",
        "mkdir",
        "rm",
        "tail",
        "grep",
        "tr",
        "find",
    ):
        real = shutil.which(tool)
        assert real is not None
        if not (folder / tool).exists():
            (folder / tool).symlink_to(real)
    if python is not None:
        script(folder / "python3", f'exec "{python}" "$@"')
    return folder


def script(path: Path, body: str) -> None:
    path.write_text(f"#!{SH}\n{body}\n")
    path.chmod(0o755)


def test_without_a_python_it_says_which_one_and_how_to_get_it(checkout: Path) -> None:
    ran = run(checkout, "demo", path=tools(checkout.parent / "bin"))
    assert ran.returncode == 1
    assert "python 3.11 or newer is needed" in ran.stderr
    assert "apt install python3" in ran.stderr
    assert "PYTHON=" in ran.stderr


def test_with_an_old_python_it_names_the_version_it_found(checkout: Path) -> None:
    path = tools(checkout.parent / "bin")
    script(path / "python3", "echo 3.9")
    ran = run(checkout, "test", path=path)
    assert ran.returncode == 1
    assert "python 3.11 or newer is needed (python3 is 3.9)" in ran.stderr


def test_a_newer_python_under_another_name_is_found(checkout: Path) -> None:
    path = tools(checkout.parent / "bin")
    script(path / "python3", "echo 3.9")
    script(path / "python3.13", f'case $2 in *venv*) exit 1;; esac; exec "{sys.executable}" "$@"')
    ran = run(checkout, "sync", path=path)
    assert "has no venv module" in ran.stderr  # so it got past the version


def test_without_the_venv_module_it_names_the_package(checkout: Path) -> None:
    path = tools(checkout.parent / "bin")
    script(
        path / "python3",
        f'case $2 in *"import venv"*) exit 1;; esac; exec "{sys.executable}" "$@"',
    )
    ran = run(checkout, "demo", path=path)
    assert ran.returncode == 1
    assert "has no venv module" in ran.stderr
    assert "apt install python3-venv" in ran.stderr


def test_without_a_network_it_says_so_and_leaves_nothing_that_looks_ready(checkout: Path) -> None:
    ran = run(
        checkout,
        "sync",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
        PIP_CONFIG_FILE="/dev/null",
    )
    assert ran.returncode == 1, ran.stderr
    assert "PyPI cannot be reached" in ran.stderr
    assert "HTTPS_PROXY" in ran.stderr
    assert "then run ./dev sync again" in ran.stderr
    assert not list((checkout / ".dev").glob("synced-*"))


def test_a_certificate_nobody_trusts_is_said_with_how_to_name_one(checkout: Path) -> None:
    path = tools(checkout.parent / "bin")
    pip = checkout.parent / "pip"
    # What uv and pip say behind a proxy that signs with an authority of its own.
    script(pip, "echo 'client error (Connect): invalid peer certificate: UnknownIssuer'; exit 1")
    script(
        path / "python3",
        f"""case "$1 $2" in
"-m venv") mkdir -p "$3/bin"; /bin/ln -s "{pip}" "$3/bin/python" ;;
*) exec "{sys.executable}" "$@" ;;
esac""",
    )
    ran = run(checkout, "demo", path=path)
    assert ran.returncode == 1
    assert "is not trusted" in ran.stderr
    assert "SSL_CERT_FILE" in ran.stderr
    assert "then run ./dev demo again" in ran.stderr
    assert not list((checkout / ".dev").glob("synced-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_on_a_full_disk_it_says_so(checkout: Path, tmp_path: Path) -> None:
    small = tmp_path / "small disk"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    try:
        for file in checkout.iterdir():
            shutil.copy(file, small / file.name)
        ran = run(small, "sync")
        assert ran.returncode == 1
        assert "the disk is full" in ran.stderr
        assert "free some room" in ran.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_unknown_verb_is_refused_with_the_list(checkout: Path) -> None:
    ran = run(checkout, "deploy")
    assert ran.returncode == 2
    assert "there is no verb deploy" in ran.stderr
    assert "bench NAME" in ran.stderr


def test_an_unknown_benchmark_is_refused(checkout: Path) -> None:
    ran = run(checkout, "bench", "nothing")
    assert ran.returncode == 1
    assert "there is no benchmark nothing" in ran.stderr


def test_clean_removes_what_was_made_and_nothing_else(checkout: Path) -> None:
    for made in (".venv", ".dev", ".roost"):
        (checkout / made).mkdir()
    (checkout / "src").mkdir()
    (checkout / "tests").mkdir()
    (checkout / "notes.txt").write_text("mine")
    ran = run(checkout, "clean")
    assert ran.returncode == 0, ran.stderr
    left = {file.name for file in checkout.iterdir()}
    assert left == {"dev", "pyproject.toml", "uv.lock", "src", "tests", "notes.txt"}


def test_clean_refuses_while_roost_runs_from_the_folder(checkout: Path) -> None:
    (checkout / ".roost").mkdir()
    (checkout / ".roost" / "up.json").write_text(f'{{"pids": {{"up": {os.getpid()},}}}}')
    ran = run(checkout, "clean")
    assert ran.returncode == 1
    assert f"roost is running from .roost (pid {os.getpid()})" in ran.stderr
    assert (checkout / ".roost").exists()


def test_two_at_once_wait_for_each_other(checkout: Path) -> None:
    """The second finds what the first made: one set-up, two successes."""
    path = tools(checkout.parent / "bin")
    made = checkout.parent / "made"
    # A python whose venv module makes an environment of stand-ins, slowly.
    stand_in = checkout.parent / "stand-in"
    script(stand_in, "exit 0")
    script(
        path / "python3",
        f"""case "$1 $2" in
"-m venv") /bin/sleep 1; echo made >>"{made}"; mkdir -p "$3/bin"
    for name in python uv roost; do /bin/ln -s "{stand_in}" "$3/bin/$name"; done ;;
*) exec "{sys.executable}" "$@" ;;
esac""",
    )
    both = [
        subprocess.Popen(
            [SH, str(checkout / "dev"), "sync"],
            env={"PATH": str(path), "HOME": str(checkout.parent)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert made.read_text() == "made\n"
