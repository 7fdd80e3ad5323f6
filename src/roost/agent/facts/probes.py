"""How much room has a mount that may never answer?"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roost.agent.facts.filesystems import Sizes, sizes

WITHIN_S: Final = 2.0
MAX_OUTSTANDING: Final = 64
_MAX_ANSWER: Final = 1_000_000

# A process of its own: a thread that waits for a dead server can't be ended, and would keep the
# agent's files and locks open after the agent itself was killed.
_ASK: Final = """
import json, os, stat, sys
found = []
for path in sys.argv[1:]:
    try:
        real = os.path.realpath(path, strict=True)
        if not stat.S_ISDIR(os.stat(real).st_mode):
            raise NotADirectoryError(20, "Not a directory")
        said = os.statvfs(real)
        found.append([real, said.f_bsize, said.f_frsize, said.f_blocks, said.f_bavail])
    except OSError as cause:
        found.append([cause.strerror or type(cause).__name__])
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a mount said of one directory on it."""

    real: str | None = None
    """The directory without links; `None`: it can't be used, `problem` says why."""
    sizes: Sizes | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The last answers of a mount, one a directory; `None`: it has never answered."""

    answers: Mapping[str, Answer] | None = None
    answered_at: float | None = None
    waiting_since: float | None = None
    """It was asked then and does not answer; `None`: the answers are fresh."""


@dataclass(slots=True)
class _Outstanding:
    pid: int
    pipe: int
    asked_at: float
    directories: tuple[str, ...]
    said: bytearray


class Probes:
    """Asks each mount in a process of its own, one at a time, and keeps what it said last."""

    def __init__(
        self,
        *,
        within_s: float = WITHIN_S,
        now: Callable[[], float] = time.time,
        program: str = _ASK,
    ) -> None:
        self._within_s = within_s
        self._now = now
        self._program = program
        self._outstanding: dict[str, _Outstanding] = {}
        self._heard: dict[str, Heard] = {}
        self._abandoned: list[int] = []

    def ask(self, mounts: Mapping[str, Sequence[str]]) -> dict[str, Heard]:
        """For each mount (any name of it) and its directories what it said, now or last.

        Those that were asked before and still don't answer are not waited for.
        """
        self._forget_all_but(mounts)
        started = []
        for mount, directories in mounts.items():
            if mount not in self._outstanding and self._start(mount, tuple(directories)):
                started.append(mount)
        self._collect(started, self._within_s)
        self._collect([mount for mount in self._outstanding if mount not in started], 0)
        return {mount: self._state(mount) for mount in mounts}

    @property
    def outstanding(self) -> int:
        """How many processes wait for a mount."""
        return len(self._outstanding) + len(self._abandoned)

    def close(self) -> None:
        """End the processes, as far as the kernel lets them end."""
        self._forget_all_but(())

    def _state(self, mount: str) -> Heard:
        before = self._heard.get(mount, Heard())
        waiting = self._outstanding.get(mount)
        return Heard(
            answers=before.answers,
            answered_at=before.answered_at,
            waiting_since=None if waiting is None else waiting.asked_at,
        )

    def _start(self, mount: str, directories: tuple[str, ...]) -> bool:
        if self.outstanding >= MAX_OUTSTANDING:
            return False
        reading, writing = os.pipe()
        try:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-I", "-S", "-c", self._program, *directories],
                    {"LC_ALL": "C.UTF-8"},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, null, 0),
                        (os.POSIX_SPAWN_DUP2, writing, 1),
                        (os.POSIX_SPAWN_DUP2, null, 2),
                    ],
                    setsid=True,
                )
            finally:
                os.close(null)
        except (OSError, ValueError):
            os.close(reading)
            return False
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self._outstanding[mount] = _Outstanding(
            pid=pid, pipe=reading, asked_at=self._now(), directories=directories, said=bytearray()
        )
        return True

    def _collect(self, mounts: Sequence[str], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        poll = select.poll()
        by_pipe = {}
        for mount in mounts:
            one = self._outstanding[mount]
            by_pipe[one.pipe] = mount
            poll.register(one.pipe, select.POLLIN)
        while by_pipe:
            left = max(0.0, deadline - time.monotonic())
            ready = poll.poll(left * 1000)
            if not ready:
                return
            for pipe, _ in ready:
                if self._read(by_pipe[pipe]):
                    poll.unregister(pipe)
                    self._finish(by_pipe.pop(pipe))

    def _read(self, mount: str) -> bool:
        """Whether everything has been said."""
        one = self._outstanding[mount]
        try:
            piece = os.read(one.pipe, 1 << 16)
        except BlockingIOError:
            return False
        one.said += piece
        return not piece or len(one.said) > _MAX_ANSWER

    def _finish(self, mount: str) -> None:
        one = self._outstanding.pop(mount)
        os.close(one.pipe)
        self._end(one.pid)
        answers = _answers(one.directories, bytes(one.said))
        self._heard[mount] = Heard(answers=answers, answered_at=self._now())

    def _forget_all_but(self, mounts: Iterable[str]) -> None:
        for mount in self._outstanding.keys() - set(mounts):
            one = self._outstanding.pop(mount)
            os.close(one.pipe)
            self._end(one.pid)
        for mount in self._heard.keys() - set(mounts):
            del self._heard[mount]
        for pid in self._abandoned.copy():
            self._abandoned.remove(pid)
            self._end(pid)

    def _end(self, pid: int) -> None:
        """End it and have its status; one that the kernel does not let end is looked at later."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                return
            time.sleep(0.002)
        self._abandoned.append(pid)


def _answers(directories: Sequence[str], said: bytes) -> dict[str, Answer]:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    silent = Answer(problem="its probe ended without an answer")
    answers = dict.fromkeys(directories, silent)
    for directory, one in zip(directories, found if isinstance(found, list) else (), strict=False):
        match one:
            case [str() as problem]:
                answers[directory] = Answer(problem=problem)
            case [str() as real, int() as block, int() as unit, int() as blocks, int() as free]:
                said_sizes = sizes(block=block, fragment=unit, blocks=blocks, available=free)
                answers[directory] = Answer(real=real, sizes=said_sizes)
            case _:
                pass
    return answers
