"""Is something there, on a mount that may never answer?"""

import os
from collections.abc import Callable
from typing import Final

from roost.agent.facts.kinds import kind_of, may_hang
from roost.agent.facts.mountinfo import mount_of
from roost.agent.facts.mounts import read_table
from roost.agent.facts.probes import Probes
from roost.agent.facts.tree import Tree

# `Probes` wants sizes with an answer; here only that there is one counts.
_ASK: Final = """
import json, os, sys
found = []
for path in sys.argv[1:]:
    try:
        os.stat(path)
        found.append([path, 1, 1, 1, 1])
    except OSError as cause:
        found.append([cause.strerror or type(cause).__name__])
json.dump(found, sys.stdout)
"""


class Reach:
    """Looks at paths; those on mounts that may hang in a process of its own, with a limit."""

    def __init__(
        self, tree: Tree | None = None, make: Callable[[], Probes] = lambda: Probes(program=_ASK)
    ) -> None:
        self._tree = tree or Tree()
        self._make = make
        self._by_mount: dict[str, Probes] = {}

    def exists(self, path: str) -> bool | None:
        """`None`: its mount does not answer."""
        table, _ = read_table(self._tree)
        if table is None:
            return os.path.exists(path)  # noqa: PTH110 - a text
        hanging = {mount.point for mount in table if may_hang(kind_of(mount.kind, mount.source))}
        try:
            real = self._tree.resolve(path, until=hanging.__contains__)
        except (OSError, ValueError):
            return False
        mount = mount_of(table, real)
        if mount is None or mount.point not in hanging:
            # Resolving has looked at every part of it.
            return True
        return self._asked(mount.point, real)

    def _asked(self, point: str, path: str) -> bool | None:
        probes = self._by_mount.setdefault(point, self._make())
        # The first answer may be one to an earlier question about another path.
        for _ in range(2):
            heard = probes.ask({point: [path]})[point]
            answer = (heard.answers or {}).get(path)
            if heard.waiting_since is not None:
                return None
            if answer is not None:
                return answer.problem is None
        return None

    def close(self) -> None:
        """Leave no probe behind, as far as the kernel lets them end."""
        for probes in self._by_mount.values():
            probes.close()
