"""Children of `roost up`, as small shell scripts."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from roost.run.processes import Child, Processes
from running import alive, wait_for


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


HURRIED = (
    "n=0; trap 'n=$((n+1)); [ $n -lt 2 ] || exit 5' TERM; echo ready; while :; do sleep 0.1; done"
)


def until_ended(processes: Processes, child: Child) -> None:
    deadline = time.monotonic() + 60
    while child.process.returncode is None:
        processes.wait(1)
        assert time.monotonic() < deadline


def test_what_a_child_says_last_is_of_its_present_run(tmp_path: Path) -> None:
    with Processes(log_dir=tmp_path) as processes:
        until_ended(processes, processes.start("one", shell("echo error: first >&2; exit 3")))
        child = processes.start("one", shell("echo something else"))
        until_ended(processes, child)
    assert child.last_lines() == ["something else"]
    assert (tmp_path / "one.log").read_text() == "error: first\nsomething else\n"


def test_an_ended_child_is_told_with_its_status(tmp_path: Path) -> None:
    with Processes(log_dir=tmp_path) as processes:
        child = processes.start("one", shell("exit 7"))
        assert processes.running("one")
        until_ended(processes, child)
        assert child.process.returncode == 7
        assert not processes.running("one")
        assert not processes.running("never started")


def test_one_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Processes(log_dir=tmp_path, hurry_s=0.3) as processes:
        child = processes.start("one", shell("trap '' TERM; echo ready; while :; do sleep 1; done"))
        wait_for(child.last_lines)
        processes.stop("one", grace_s=0.3)
        assert child.process.returncode == -signal.SIGKILL


def test_asked_again_it_hurries_the_child_with_a_second_sigterm(tmp_path: Path) -> None:
    with Processes(log_dir=tmp_path) as processes:
        child = processes.start("one", shell(HURRIED))
        wait_for(child.last_lines)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        processes.stop("one", grace_s=60)
        timer.join()
        assert child.process.returncode == 5
        assert processes.stopping == 1


def test_after_its_grace_a_child_is_hurried_before_it_is_killed(tmp_path: Path) -> None:
    with Processes(log_dir=tmp_path, hurry_s=60) as processes:
        child = processes.start("one", shell(HURRIED))
        wait_for(child.last_lines)
        processes.stop("one", grace_s=0.5)
        assert child.process.returncode == 5


def test_who_was_in_a_hurry_before_is_still(tmp_path: Path) -> None:
    with Processes(log_dir=tmp_path) as processes:
        child = processes.start("one", shell(HURRIED))
        wait_for(child.last_lines)
        processes.stopping = 2
        processes.stop("one", grace_s=3600, patient=1)
        assert child.process.returncode == 5


def test_a_sigterm_waits_for_a_child_that_is_not_ready_for_it(tmp_path: Path) -> None:
    script = """
import signal, sys, time
print("started", flush=True)
time.sleep(1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
time.sleep(600)
"""
    with Processes(log_dir=tmp_path) as processes:
        child = processes.start("one", [sys.executable, "-c", script], holds_sigterm=True)
        wait_for(child.last_lines)
        processes.stop("one", grace_s=60)
        assert child.process.returncode == 9
        again = processes.start_again("one")
        assert (again.argv, again.holds_sigterm) == (child.argv, True)
        wait_for(again.last_lines)
        processes.stop("one", grace_s=60)
        assert again.process.returncode == 9


def test_a_child_gets_sigterm_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = f"""
import sys, time
from pathlib import Path
from roost.run.processes import Processes
with Processes(log_dir=Path({str(tmp_path)!r})) as processes:
    print(processes.start("one", ["sleep", "600"]).pid, flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert alive(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not alive(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_wake_the_wait_and_are_counted(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Processes(log_dir=tmp_path) as processes:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
        timer.start()
        processes.wait(60)
        timer.join()
        assert processes.stopping == 1
    assert signal.getsignal(number) is before
