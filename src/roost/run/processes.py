"""Child processes of a `roost up`: each in a session of its own, watched without polling.

A child gets SIGTERM from the kernel when its parent dies, however it dies: nothing outlives `up`.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Final, Self

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LOG_LIMIT: Final = 16_000_000
"""Bytes of a child's log kept before it starts a new file; one older file stays beside it."""
_HURRY_S: Final = 10.0
_RESEND_S: Final = 1.0


@dataclass(kw_only=True)
class Child:
    """One process and how to start it again."""

    name: str
    argv: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes]
    pidfd: int
    started: float
    log_start: int
    """Where this run's part of the log begins."""
    holds_sigterm: bool = False
    """A SIGTERM waits until the child is ready for it; it has to unblock the signal then."""
    quick_ends: int = 0
    """Ends in a row that came soon after their start; the delay before the next start grows."""

    @property
    def pid(self) -> int:
        """The process as it is now; a restart changes it."""
        return self.process.pid

    def last_lines(self, count: int = 15) -> list[str]:
        """The end of what this run of it wrote, for when it won't start."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(self.log_start, self.log.stat().st_size - 16_384))
                return stream.read().decode("utf-8", "replace").splitlines()[-count:]
        except OSError:
            return []


@dataclass(kw_only=True)
class Processes:
    """A handful of children and the signals that end them."""

    log_dir: Path
    hurry_s: float = _HURRY_S
    """Between the SIGTERM that hurries a child and SIGKILL."""
    children: dict[str, Child] = field(default_factory=dict)
    stopping: int = 0
    """How many times somebody asked to stop (SIGTERM, SIGINT, SIGHUP)."""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _wakeup: tuple[int, int] | None = None
    _handlers: dict[signal.Signals, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakeup = (read, write)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._selector.register(read, selectors.EVENT_READ)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._asked_to_stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() gave back
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for end in self._wakeup or ():
            os.close(end)

    def _asked_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping += 1

    def start_again(self, name: str) -> Child:
        """As it was started before."""
        child = self.children[name]
        return self.start(name, child.argv, holds_sigterm=child.holds_sigterm)

    def start(self, name: str, argv: Sequence[str], *, holds_sigterm: bool = False) -> Child:
        """Start the child of that name."""
        self.log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self.log_dir / f"{name}.log"
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))
        with open(log, "ab", opener=_private) as stream:
            log_start = stream.tell()
            process = _spawn(argv, stream, holds_sigterm=holds_sigterm)
        pidfd = os.pidfd_open(process.pid)
        before = self.children.get(name)
        child = Child(
            name=name,
            argv=argv,
            log=log,
            process=process,
            pidfd=pidfd,
            started=time.monotonic(),
            log_start=log_start,
            holds_sigterm=holds_sigterm,
            quick_ends=before.quick_ends if before else 0,
        )
        self.children[name] = child
        self._selector.register(pidfd, selectors.EVENT_READ, child)
        return child

    def wait(self, timeout: float | None) -> list[Child]:
        """Sleep until a child ends, a signal comes or the time is up; the children that ended."""
        ended: list[Child] = []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                os.read(key.fd, 64)
                continue
            child: Child = key.data
            self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
            child.process.wait()
            ended.append(child)
        return ended

    def running(self, name: str) -> bool:
        """Whether that child was started and has not ended."""
        child = self.children.get(name)
        return child is not None and child.process.returncode is None

    def stop(self, name: str, *, grace_s: float, patient: int = 0) -> None:
        """SIGTERM and wait; after the grace SIGTERM again, which hurries it, and at last SIGKILL.

        Once somebody has asked to stop more than `patient` times, it is hurried at once.
        """
        child = self.children[name]
        hurried_at: float | None = None
        deadline = time.monotonic() + grace_s
        child.process.send_signal(signal.SIGTERM)
        while child.process.returncode is None:
            # First, so that two SIGTERMs are never one.
            self.wait(min(0.2, max(0.05, deadline - time.monotonic())))
            now = time.monotonic()
            if hurried_at is None:
                if now < deadline and self.stopping <= patient:
                    continue
                deadline = now + self.hurry_s
            elif now >= deadline:
                child.process.kill()
                continue
            elif now - hurried_at < _RESEND_S:
                continue
            hurried_at = now
            child.process.send_signal(signal.SIGTERM)


def _private(path: str, flags: int) -> int:
    handle = os.open(path, flags, 0o600)
    # One of an earlier version may be readable by others.
    os.fchmod(handle, 0o600)
    return handle


def _spawn(argv: Sequence[str], log: IO[bytes], *, holds_sigterm: bool) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        if holds_sigterm:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(0)

    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches `up` alone, which ends them in order
        preexec_fn=die_with_parent,  # noqa: PLW1509 - `up` has one thread
    )
