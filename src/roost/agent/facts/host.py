"""What is this machine apart from its cards: its memory, its disks, its labels?"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roost.agent.facts.labels import read_labels
from roost.agent.facts.memory import read_memory
from roost.agent.facts.mounts import read_mounts
from roost.agent.facts.probes import Probes
from roost.agent.facts.storage import Storage
from roost.agent.facts.text import path_text, shown
from roost.agent.facts.tree import Tree
from roost.domain.node import Filesystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Facts, `None` where they could not be learnt, and why."""

    labels: Mapping[str, str]
    memory_bytes: int | None
    storage: tuple[Filesystem, ...] | None
    problems: tuple[str, ...]


class Reader:
    """Reads one machine again and again; remembers what its mounts said last."""

    def __init__(
        self, root: Path, model_directories: Sequence[Path], *, probes: Probes | None = None
    ) -> None:
        self._tree = Tree(root)
        self._probes = probes or Probes()
        # Where this process happens to stand says nothing of another machine.
        here = Path.cwd() if self._tree.is_live else Path("/")
        directories = [str(here / directory) for directory in model_directories]
        self._storage = Storage(self._tree, directories, self._probes)

    def read(self) -> Found:
        """The facts as they are now; never waits for a mount longer than `Probes` does."""
        mounts = read_mounts(self._tree)
        memory_bytes, said_of_memory = read_memory(self._tree, mounts.table)
        storage, said_of_storage = self._storage.read(mounts)
        return Found(
            labels=read_labels(self._tree),
            memory_bytes=memory_bytes,
            storage=storage,
            problems=(*mounts.problems, *said_of_memory, *said_of_storage),
        )

    def close(self) -> None:
        """Leave no probe behind, as far as the kernel lets them end."""
        self._probes.close()


def host_name(root: Path) -> str:
    """What the machine below `root` calls itself; `unnamed` if that isn't known."""
    tree = Tree(root)
    if tree.is_live:
        return socket.gethostname()
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
        try:
            name = shown(path_text(tree.read(path, at_most=4096).strip()))
        except OSError:
            continue
        if name:
            return name
    return "unnamed"
