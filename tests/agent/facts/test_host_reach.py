"""Whether a model is there, also where its mount does not answer."""

import time
from pathlib import Path

import pytest

from roost.agent import models
from roost.agent.facts.probes import Probes
from roost.agent.facts.reach import Reach
from roost.agent.facts.tree import Tree
from roost.errors import Unavailable

TABLE = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:42 / /filer rw - nfs4 nas:/models rw\n"

# Says that all it is asked about is there, once the file beside its first argument's root exists.
WAITS = """
import json, sys, time, pathlib
while not pathlib.Path({go!r}).exists():
    time.sleep(0.01)
json.dump([[path, 1, 1, 1, 1] if path.endswith(".gguf") else ["gone"] for path in sys.argv[1:]], sys.stdout)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Tree:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(TABLE)
    (tmp_path / "local").mkdir()
    (tmp_path / "local/m.gguf").touch()
    (tmp_path / "link").symlink_to("/filer")
    return Tree(tmp_path)


def reach(machine: Tree, go: Path, within_s: float) -> Reach:
    program = WAITS.format(go=str(go))
    return Reach(machine, lambda: Probes(within_s=within_s, program=program))


def test_a_local_file_is_there_or_not(machine: Tree, tmp_path: Path) -> None:
    looking = reach(machine, tmp_path / "never", 0.05)
    assert looking.exists("/local/m.gguf") is True
    assert looking.exists("/local/x.gguf") is False
    assert looking.exists("/local/\0") is False


def test_what_is_on_a_mount_that_does_not_answer_is_neither(machine: Tree, tmp_path: Path) -> None:
    looking = reach(machine, tmp_path / "go", 0.05)
    try:
        for path in ("/filer/m.gguf", "/link/m.gguf", "/filer/n.gguf") * 3:
            assert looking.exists(path) is None
        (probes,) = looking._by_mount.values()
        assert probes.outstanding == 1
        (tmp_path / "go").touch()
        deadline = time.monotonic() + 60
        while (found := looking.exists("/filer/n.gguf")) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert found is True
    finally:
        looking.close()


def test_a_mount_that_answers_tells_what_is_there(machine: Tree, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    looking = reach(machine, tmp_path / "go", 60)
    assert looking.exists("/filer/m.gguf") is True
    assert looking.exists("/link/absent") is False


def test_an_engine_whose_model_may_be_on_a_dead_mount_is_told_so() -> None:
    answers = {"/filer/m.gguf": None, "/local/m.gguf": False}
    with pytest.raises(Unavailable, match="/filer is on a mount that does not answer"):
        models.resolve("m.gguf", [Path("/filer"), Path("/local")], answers.__getitem__)
    answers["/local/m.gguf"] = True
    found = models.resolve("m.gguf", [Path("/filer"), Path("/local")], answers.__getitem__)
    assert found == Path("/local/m.gguf")


def test_a_real_file_is_found_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "m").touch()
    assert Reach().exists(str(tmp_path / "m")) is True
    assert Reach().exists(str(tmp_path / "n")) is False
