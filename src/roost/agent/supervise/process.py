"""One engine's first process: started or adopted, watched by pidfd, and every process that came of
it.
"""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roost.agent.supervise import procfs

INHERITED: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS", "CUDA_HOME", "CUDA_PATH",
    "ROCM_PATH",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE",
})  # fmt: skip
"""What an engine gets of the agent's environment, with `LC_*`, `NCCL_*` and `NVIDIA_*`: never a
secret of the agent's.
"""
UMASK: Final = 0o077
"""What an engine writes may hold prompts: it is its owner's alone, as all of the agent's is."""
OOM_SCORE_ABOVE_AGENT: Final = 200
"""Out of memory, the kernel ends the engine and not whoever starts it again."""
MOST_OOM_SCORE: Final = 1000
_INHERITED_PREFIXES: Final = ("LC_", "NCCL_", "NVIDIA_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Whose process it is."""

    agent: str
    fleet: str
    placement: str
    rank: int

    def env(self) -> dict[str, str]:
        """As an engine carries it."""
        return {
            "ROOST_AGENT": self.agent,
            "ROOST_FLEET": self.fleet,
            "ROOST_PLACEMENT": self.placement,
            "ROOST_RANK": str(self.rank),
        }

    def is_on(self, marks: Mapping[str, str]) -> bool:
        """The fleet doesn't count: an agent that joined another one still owns its engines."""
        return (
            marks.get("ROOST_AGENT") == self.agent
            and marks.get("ROOST_PLACEMENT") == self.placement
            and marks.get("ROOST_RANK") == str(self.rank)
        )


def environment(own: Mapping[str, str], engine: Mapping[str, str], mark: Mark) -> dict[str, str]:
    """An engine's environment, out of the agent's own and what its adapter asks for."""
    kept = {
        name: value
        for name, value in own.items()
        if name in INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    return {**kept, **engine, **mark.env()}


class Process:
    """An engine's first process. Make one by `launch` or `adopt`; `close` it when it is of no more
    use.
    """

    def __init__(self, pid: int, started: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.started = started
        self.over = asyncio.Event()
        """Set when the process has ended, where the kernel tells; else `running` finds out."""
        self._child = child
        self._fd: int | None = None
        # Old kernels and some containers have no pidfd; then the supervisor's next look finds out.
        with contextlib.suppress(OSError, AttributeError):
            self._fd = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(self._fd, self._ended)

    @property
    def told(self) -> bool:
        """`over` will be set by the kernel."""
        return self._fd is not None

    @property
    def running(self) -> bool:
        """It lives; a child that ended is reaped by asking."""
        if self._child is not None:
            return self._child.poll() is None
        found = procfs.stat(self.pid)
        return found is not None and found.lives and found.started == self.started

    @property
    def status(self) -> int | None:
        """Exit status once it isn't running; `None`: not known, it isn't our child."""
        return None if self._child is None else self._child.poll()

    def terminate(self) -> None:
        """SIGTERM; to nobody else, also when the number has been given away since."""
        if not self.running:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, signal.SIGTERM)
            else:
                os.kill(self.pid, signal.SIGTERM)

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _ended(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
        self.over.set()


def launch(argv: tuple[str, ...], env: Mapping[str, str], log: int) -> Process:
    """Start an engine in a session of its own: what ends the agent doesn't end it.

    `log` is a descriptor of the file that gets its output; no pipe, so that no slow reader blocks
    it and none
    is needed.
    """
    # Descriptors are closed and signals are as they were before Python: Popen's own defaults.
    child = subprocess.Popen(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,
        close_fds=True,
        umask=UMASK,
    )
    _limit(child.pid)
    # Between fork and here it may have ended already; it is our zombie then and still has its
    # number.
    found = procfs.stat(child.pid)
    return Process(child.pid, found.started if found is not None else 0, child)


def _limit(pid: int) -> None:
    """Its children inherit all of it. A kernel or container that forbids one of these forbids it.

    Set from outside, just after the program was started: what runs between fork and exec in a
    process with threads may do nothing that Python does.
    """
    with contextlib.suppress(OSError):
        # The core of an engine is as large as its model, and fills the disk that the others need.
        _, most = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, most))
    with contextlib.suppress(OSError, ValueError):
        # Each request is a descriptor, and 1024 of them is what most shells give.
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
    with contextlib.suppress(OSError, ValueError):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        score = min(MOST_OOM_SCORE, own + OOM_SCORE_ABOVE_AGENT)
        (procfs.PROC / str(pid) / "oom_score_adj").write_text(str(score))


def adopt(pid: int, started: int) -> Process | None:
    """The engine that an earlier agent started; `None`: it is gone, or the number is somebody
    else's now.
    """
    found = procfs.stat(pid)
    if found is None or not found.lives or found.started != started:
        return None
    return Process(pid, started, None)


def living(mark: Mark, first: tuple[int, int] | None) -> tuple[int, ...]:
    """Every process of an engine that lives, by number."""
    return tuple(sorted(process.pid for process in _living(mark, first)))


def _living(mark: Mark, first: tuple[int, int] | None) -> list[procfs.Stat]:
    """By its marks, its session or its group.

    Marks find children that made a session of their own; session and group find those that cleaned
    their
    environment. A session's number is not given away while it has a member, so that it is still the
    engine's
    exactly if no *other* process has that number as its own.
    """
    number = _session_of(first)
    return [process for process in procfs.processes() if _is_of(process, mark, number)]


def _session_of(first: tuple[int, int] | None) -> int | None:
    """The number of the engine's session, as long as it is the engine's."""
    if first is None:
        return None
    pid, started = first
    holder = procfs.stat(pid)
    return pid if holder is None or holder.started == started else None


def _is_of(process: procfs.Stat, mark: Mark, session: int | None) -> bool:
    if session is not None and session in {process.session, process.group}:
        return True
    return mark.is_on(procfs.marks(process.pid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What the driver of an engine's cards lists, once none of its processes is known to live."""

    ours: tuple[int, ...] = ()
    """That exist and are the engine's: dead ones too, whose threads may still hold the card."""
    vanished: tuple[int, ...] = ()
    """That don't exist here: about to be let go by the driver, or of another container."""


def sorted_out(listed: Iterable[int], mark: Mark, first: tuple[int, int] | None) -> Listed:
    """Somebody else's processes are in neither: who else is on a card is for the facts to say."""
    ours, vanished = [], []
    for pid in sorted(set(listed)):
        found = procfs.stat(pid)
        if found is None:
            vanished.append(pid)
        elif _is_of(found, mark, _session_of(first)):
            ours.append(pid)
    return Listed(ours=tuple(ours), vanished=tuple(vanished))


def kill(mark: Mark, first: tuple[int, int] | None) -> tuple[int, ...]:
    """SIGKILL to every process of an engine that lives; their numbers.

    One that is gone already is no error, one that isn't ours to kill stays and is seen.
    """
    found = _living(mark, first)
    for process in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _kill(process)
    return tuple(sorted(process.pid for process in found))


def _kill(process: procfs.Stat) -> None:
    """To it and to nobody else, also when its number has been given away since it was looked at."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError) as cause:
        if isinstance(cause, ProcessLookupError):
            raise
        # An old kernel or some containers: looked at again, there is little time in between.
        if _is_still(process):
            os.kill(process.pid, signal.SIGKILL)
        return
    try:
        # What the descriptor stands for now is what it stands for when the signal is sent.
        if _is_still(process):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def _is_still(process: procfs.Stat) -> bool:
    now = procfs.stat(process.pid)
    return now is not None and now.started == process.started


def find(agent: str) -> dict[tuple[str, int], int]:
    """Of this agent's engines, (placement, rank) → the first process, by the marks alone."""
    found: dict[tuple[str, int], int] = {}
    for process in procfs.processes():
        marks = procfs.marks(process.pid)
        rank = marks.get("ROOST_RANK", "")
        if marks.get("ROOST_AGENT") != agent or not rank.isdigit():
            continue
        key = (marks.get("ROOST_PLACEMENT", ""), int(rank))
        # The first one leads its session; of several, the oldest number that does.
        if process.pid == process.session and (key not in found or process.pid < found[key]):
            found[key] = process.pid
    return found


def cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use: its affinity, lowered by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, _, period = (root / "sys/fs/cgroup/cpu.max").read_text().partition(" ")
        if quota != "max":
            return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return allowed
