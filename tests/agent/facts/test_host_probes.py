"""Mounts that may hang are asked in processes of their own; here what asks is made to hang."""

import time
from pathlib import Path

import pytest

from roost.agent.facts.probes import Probes

PATIENCE_S = 30.0
"""A program that answers does so much sooner."""

# Answers once the file in its argument's place exists; the answer is a size that the file says.
WAITS = """
import json, sys, time, pathlib
path = pathlib.Path(sys.argv[1])
while not (path / "go").exists():
    time.sleep(0.01)
blocks = int((path / "go").read_text())
json.dump([[str(path), 1, 1, blocks, 1]], sys.stdout)
"""


def settled(probes: Probes, mount: dict[str, list[str]]) -> object:
    """Ask until it answers."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        (heard,) = probes.ask(mount).values()
        if heard.waiting_since is None:
            return heard
        time.sleep(0.02)
    raise AssertionError("it never answered")


def test_a_directory_says_its_size_and_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    wanted = [str(tmp_path / name) for name in ("link", "file", "absent")]
    probes = Probes(within_s=PATIENCE_S)
    heard = probes.ask({"m": wanted})["m"]
    assert heard.waiting_since is None
    assert heard.answers is not None
    link, file, absent = (heard.answers[path] for path in wanted)
    assert link.real == str(tmp_path / "real")
    assert link.sizes is not None
    assert link.sizes.total_bytes is not None
    assert (file.real, file.problem) == (None, "Not a directory")
    assert (absent.real, absent.problem) == (None, "No such file or directory")
    assert probes.outstanding == 0


def test_a_mount_that_does_not_answer_is_asked_once_and_not_waited_for_again(
    tmp_path: Path,
) -> None:
    probes = Probes(within_s=0.05, program=WAITS, now=lambda: 1000.0)
    try:
        for _ in range(5):
            heard = probes.ask({"m": [str(tmp_path)]})["m"]
            assert heard.answers is None
            assert heard.waiting_since == 1000
            assert probes.outstanding == 1
    finally:
        probes.close()
    assert probes.outstanding == 0


def test_what_it_said_last_is_kept_with_its_time(tmp_path: Path) -> None:
    clock = [1000.0]
    probes = Probes(within_s=PATIENCE_S, program=WAITS, now=lambda: clock[0])
    mount = {"m": [str(tmp_path)]}
    go = tmp_path / "go"
    go.write_text("11")
    first = probes.ask(mount)["m"]
    assert first.answers is not None
    assert first.answers[str(tmp_path)].sizes is not None
    assert (first.answered_at, first.waiting_since) == (1000.0, None)

    go.unlink()
    clock[0] = 1015.0
    probes._within_s = 0.05
    second = probes.ask(mount)["m"]
    assert second.answers == first.answers
    assert (second.answered_at, second.waiting_since) == (1000.0, 1015.0)

    clock[0] = 1030.0
    (tmp_path / "new").write_text("22")
    (tmp_path / "new").rename(go)
    third = settled(probes, mount)
    assert third != first
    assert third.answers[str(tmp_path)].sizes.total_bytes == 22  # type: ignore[attr-defined]  # it has answered
    probes.close()


def test_one_that_hangs_takes_no_time_from_the_others(tmp_path: Path) -> None:
    probes = Probes(within_s=0.3, program=WAITS)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    mounts = {name: [str(tmp_path / name)] for name in ("a", "b")}
    try:
        assert all(heard.answers is None for heard in probes.ask(mounts).values())
        (tmp_path / "b/go").write_text("5")
        settled(probes, {"b": mounts["b"]})
        # Asking for b alone has given a up: nothing is left of it.
        assert probes.outstanding == 0
    finally:
        probes.close()


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(1)",
        "print('nonsense')",
        "print('[[1, 2]]')",
        "print('{}')",
        "print('null')",
        "import sys; sys.stdout.write('[' * 2_000_000)",
        "print('[[\"/x\", 1, 1, 1.5, 1]]')",
    ],
)
def test_a_probe_that_says_nonsense_is_a_problem_and_no_number(program: str) -> None:
    probes = Probes(within_s=PATIENCE_S, program=program)
    heard = probes.ask({"m": ["/x"]})["m"]
    assert heard.answers is not None
    assert heard.answers["/x"].sizes is None
    assert heard.answers["/x"].problem == "its probe ended without an answer"
    assert probes.outstanding == 0


def test_a_directory_whose_name_no_program_can_be_given_is_not_asked() -> None:
    heard = Probes(within_s=PATIENCE_S).ask({"m": ["/a\0b"]})["m"]
    assert heard.answers is None
