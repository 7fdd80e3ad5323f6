"""Which processes of engines live, by the marks that their agents put on them."""

from typing import NewType

from roost.agent.supervise import procfs

Process = NewType("Process", tuple[int, int])
"""Its number and when it began: one process for ever."""


def marked(**marks: str) -> frozenset[Process]:
    """What lives and carries those marks."""
    return frozenset(
        Process((process.pid, process.started))
        for process in procfs.processes()
        if marks.items() <= procfs.marks(process.pid).items()
    )


def living(of: frozenset[Process]) -> list[int]:
    """Those of them that live still, whatever became of their marks."""
    now = {Process((process.pid, process.started)) for process in procfs.processes()}
    return sorted(pid for pid, _ in of & now)


def marks_of(pid: int) -> dict[str, str]:
    """Whose it is."""
    return dict(procfs.marks(pid))
