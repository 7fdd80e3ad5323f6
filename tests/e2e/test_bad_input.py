"""What an operator gets wrong, end to end: a sentence that says what to change, and nothing half applied."""

import subprocess
from pathlib import Path

import pytest

from running import CATALOG, MODEL_FILE, Running, Served, environment, model_dir, roost

PROFILE = (
    "profiles: [{{name: cpu, engine: llama.cpp, source: {source}, args: ['-c', '512', '-t', '1']}}]"
)


def apply_one(stack: Running, name: str, source: str) -> None:
    stack.apply(f"models:\n- name: {name}\n  {PROFILE.format(source=source)}\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("models:\n- name: a\n  replica: 2\n  profiles: []\n", "replicas"),
        ("models:\n- name: a\n  profiles: []\n", "profile"),
        (
            "models:\n- {name: a, replicas: two, profiles: [{name: p, engine: llama.cpp, source: x}]}",
            "replicas",
        ),
        ("models:\n- {name: a, profiles: [{name: p, engine: lama.cpp, source: x}]}", "llama.cpp"),
        ("models:\n- {name: a, profiles: [{name: p, engine: vllm, source: x}]}", "gpu_class"),
        (CATALOG + CATALOG.removeprefix("models:\n"), "smollm2"),
    ],
    ids=[
        "empty",
        "unknown key",
        "no profiles",
        "wrong type",
        "unknown engine",
        "vllm without a card",
        "twice",
    ],
)
def test_a_catalog_with_a_mistake_changes_nothing(shared: Served, text: str, says: str) -> None:
    before = shared.stack.json("models")
    ran = shared.stack.ctl("apply", "-f", "-", check=False, text=text)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert says in ran.stderr
    assert shared.stack.json("models") == before


@pytest.mark.parametrize("kind", ["missing", "truncated", "no gguf", "a directory"])
def test_a_model_file_that_cannot_be_loaded_is_named(
    shared: Served, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "model.gguf"
    if kind == "truncated":
        file.write_bytes((model_dir() / MODEL_FILE).read_bytes()[:3_000_000])
    elif kind == "no gguf":
        file.write_bytes(b"PK\x03\x04 this is something else" * 1000)
    elif kind == "a directory":
        file.mkdir()
    name = f"bad-{kind.replace(' ', '-')}"
    apply_one(shared.stack, name, str(file))
    row = shared.stack.await_state("failed", f"{name}-0")
    assert str(file) in row["cause"], row
    expected = {
        "missing": "no such file",
        "truncated": "truncated",
        "no gguf": "gguf",
        "a directory": "directory",
    }[kind]
    assert expected in row["cause"].lower(), row
    shared.stack.ctl("delete", name)


def test_a_wrong_join_token_is_refused(shared: Served, tmp_path: Path) -> None:
    ran = subprocess.run(
        roost(
            *("agent", "--dir", str(tmp_path / "second"), "--name", "second"),
            *("--server", shared.stack.ready["api"], "--join", "roost-join-wrong"),
        ),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 7, ran.stderr
    assert "token" in ran.stderr


def test_a_wrong_admin_credential_is_refused(shared: Served, tmp_path: Path) -> None:
    wrong = tmp_path / "credential"
    wrong.write_text("nope\n")
    ran = subprocess.run(
        roost("ctl", "nodes"),
        env=environment(ROOST_SERVER=shared.stack.ready["api"], ROOST_CREDENTIAL_FILE=str(wrong)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 7, ran.stderr


def test_a_server_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    wrong = tmp_path / "credential"
    wrong.write_text("nope\n")
    ran = subprocess.run(
        roost("ctl", "nodes"),
        env=environment(ROOST_SERVER="http://127.0.0.1:9", ROOST_CREDENTIAL_FILE=str(wrong)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 5, ran.stderr
    assert "127.0.0.1:9" in ran.stderr


def test_what_is_not_there_is_not_found(shared: Served) -> None:
    for words in (("explain", "nope"), ("delete", "nope"), ("logs", "nope-0")):
        ran = shared.stack.ctl(*words, check=False)
        assert ran.returncode == 3, words
        assert "nope" in ran.stderr


def test_a_model_that_fits_nowhere_says_why_and_exits_4(shared: Served) -> None:
    ran = shared.stack.ctl(
        *("apply", "-f", "-", "--wait", "--timeout", "5"),
        check=False,
        text="models:\n- {name: huge, profiles: [{name: cpu, engine: llama.cpp, source: x, min_memory_gb: 99999}]}",
    )
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert "needs 99999" in ran.stdout + ran.stderr
    explained = shared.stack.ctl("explain", "huge")
    assert "needs 99999" in explained.stdout
    shared.stack.ctl("delete", "huge")
