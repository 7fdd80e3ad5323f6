"""Which processes of engines live, by the marks that their agents put on them."""

from typing import NewType

from roost.agent.supervise import procfs

Process = NewType("Process", tuple[int, int])
"""Its number and when it began: one process for ever."""


def marked(**marks: str) -> frozenset[Process]:
    """What lives and carries those marks, or is in a session with one that does.

    vLLM's workers write their titles over their environment.
    """
    all_ = list(procfs.processes())
    ours = {one.session for one in all_ if marks.items() <= procfs.marks(one.pid).items()}
    return frozenset(Process((one.pid, one.started)) for one in all_ if one.session in ours)


def living(of: frozenset[Process]) -> list[int]:
    """Those of them that live still, whatever became of their marks."""
    now = {Process((process.pid, process.started)) for process in procfs.processes()}
    return sorted(pid for pid, _ in of & now)


def marks_of(pid: int) -> dict[str, str]:
    """Whose it is."""
    return dict(procfs.marks(pid))
