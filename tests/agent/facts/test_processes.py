"""Whose the processes on a card are: by tree, session, group, mark, and across pid namespaces."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from roost.agent.facts.card import Process
from roost.agent.facts.processes import Ours, Proc, Seen, foreign, parse_stat

ENGINE, WORKER, GRANDCHILD, STRANGER, AGENT = 100, 101, 102, 300, 50


def seen(parent: int, session: int, *, marked: bool = False, cgroup: str | None = None) -> Seen:
    return Seen(parent=parent, session=session, marked=marked, cgroup=cgroup)


MACHINE: Mapping[int, Seen] = {
    1: seen(0, 1),
    AGENT: seen(1, AGENT, cgroup="/agent"),
    ENGINE: seen(AGENT, ENGINE, cgroup="/agent"),
    WORKER: seen(ENGINE, ENGINE, cgroup="/agent"),
    GRANDCHILD: seen(WORKER, GRANDCHILD, cgroup="/agent"),
    STRANGER: seen(1, STRANGER, cgroup="/other"),
}
OURS = Ours(pids=frozenset({ENGINE}), gpus=frozenset({"GPU-0"}))


def count(
    *processes: Process,
    ours: Ours = OURS,
    machine: Mapping[int, Seen] = MACHINE,
    given: bool = False,
    graphics_too: bool = False,
) -> int | None:
    return foreign(
        processes,
        ours=ours,
        look=machine.get,
        given_to_us=given,
        own_cgroup="/agent",
        graphics_too=graphics_too,
    )


@pytest.mark.parametrize("pid", [ENGINE, WORKER, GRANDCHILD])
def test_an_engine_and_all_that_it_started_are_ours(pid: int) -> None:
    assert count(Process(pid=pid)) == 0


def test_a_process_of_somebody_else_is_foreign_and_counts_once() -> None:
    assert count(Process(pid=STRANGER), Process(pid=STRANGER), Process(pid=WORKER)) == 1
    assert count(Process(pid=STRANGER), Process(pid=AGENT)) == 2


def test_an_engine_is_known_by_its_mark_when_the_agent_knows_no_pid_yet() -> None:
    machine = {**MACHINE, ENGINE: seen(1, ENGINE, marked=True)}
    assert count(Process(pid=GRANDCHILD), ours=Ours(), machine=machine) == 0
    assert count(Process(pid=GRANDCHILD), ours=Ours()) == 1


def test_a_daemon_that_left_its_parents_is_ours_by_session_or_control_group() -> None:
    left = {**MACHINE, 200: seen(1, ENGINE), 201: seen(1, 201, cgroup="/engine")}
    assert count(Process(pid=200), machine=left) == 0
    assert count(Process(pid=201), machine=left) == 1
    left[ENGINE] = seen(AGENT, ENGINE, cgroup="/engine")
    assert count(Process(pid=201), machine=left) == 0


def test_the_agents_own_control_group_makes_nobody_an_engine() -> None:
    assert count(Process(pid=400), machine={**MACHINE, 400: seen(1, 400, cgroup="/agent")}) == 1


def test_pids_of_another_namespace_are_ours_on_a_card_that_we_were_given_alone() -> None:
    assert count(Process(pid=99999), given=True) == 0
    assert count(Process(pid=None), given=True) == 0
    assert count(Process(pid=99999), Process(pid=99998)) == 2
    assert count(Process(pid=None), Process(pid=None)) == 2
    assert count(Process(pid=STRANGER), given=True) == 1


def test_what_only_draws_takes_no_card_unless_that_is_asked_for() -> None:
    drawing = (Process(pid=725, compute=False, name="/usr/lib/xorg/Xorg"),)
    assert count(*drawing) == 0
    assert count(*drawing, graphics_too=True) == 1


def test_a_list_that_is_not_known_is_no_number() -> None:
    assert foreign(None, ours=OURS, look=MACHINE.get, given_to_us=True) is None


def test_a_ring_of_parents_ends() -> None:
    ring = {7: seen(8, 7), 8: seen(7, 8)}
    assert count(Process(pid=7), machine=ring) == 1


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        (b"7 (a b) c) S 3 7 5 0 -1", (3, 5)),
        (b"1 (\xff\xfe) R 0 1 1 0", (0, 1)),
    ],
)
def test_a_name_may_hold_anything(stat: bytes, expected: tuple[int, int]) -> None:
    assert parse_stat(stat) == expected


@pytest.fixture
def sleeper() -> Iterator[int]:
    env = {**os.environ, "ROOST_AGENT": "agent-1"}
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
        env=env,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_real_process_is_known_by_its_mark_of_this_agent_only(sleeper: int) -> None:
    ours = Proc(Path("/"), "agent-1")(sleeper)
    assert ours is not None
    assert (ours.parent, ours.session, ours.marked) == (os.getpid(), sleeper, True)
    for other in ("agent-11", "agent", None):
        found = Proc(Path("/"), other)(sleeper)
        assert found is not None
        assert not found.marked


def test_a_process_that_is_not_there_is_not_seen(tmp_path: Path) -> None:
    assert Proc(tmp_path, "a")(1) is None
    (tmp_path / "proc/5").mkdir(parents=True)
    (tmp_path / "proc/5/stat").write_bytes(b"5 (x")
    assert Proc(tmp_path, "a")(5) is None
    assert Proc(tmp_path).own_cgroup() is None
