"""Which ports engines get: one at a time in the range of their node, none of anybody else's."""

from collections.abc import Iterable
from typing import Final

from roost.domain.node import NodeName
from roost.errors import Unavailable
from roost.reconcile.replicas import Replica
from roost.services.inventory import Inventory

DEFAULT_PORTS: Final = (20_000, 21_999)
"""Of a node whose agent reports no range."""


class Ports:
    """The ports that are given out at each address, while a step gives out more."""

    def __init__(self, replicas: Iterable[Replica], inventory: Inventory, own: int | None) -> None:
        self._inventory = inventory
        self._used: dict[str, set[int]] = {}
        self._own = own
        for replica in replicas:
            for shard in replica.shards:
                self._hold(shard.host, shard.port, shard.group_port)
        for orphan in inventory.orphans():
            for rank, (_, spec) in orphan.shards.items():
                self._hold(spec.host, spec.port, spec.group_port if rank == 0 else None)

    def take(
        self,
        node: NodeName,
        host: str,
        ports: tuple[int, int] | None,
        refused: Iterable[int] = (),
    ) -> int:
        """The lowest free port of the node's range; several nodes may share one address.

        `refused` are ports that somebody else was found on. Unavailable: none is left.
        """
        used = self._used.setdefault(host, set())
        taken = self._inventory.ports_taken(node).union(refused)
        first, last = ports or DEFAULT_PORTS
        for port in range(first, last + 1):
            if port not in used and port not in taken and port != self._own:
                used.add(port)
                return port
        raise Unavailable(
            f"node {node} has no free port left from {first} to {last}",
            hint="widen the range: roost agent --port-range FIRST-LAST",
        )

    def _hold(self, host: str, *ports: int | None) -> None:
        self._used.setdefault(host, set()).update(port for port in ports if port is not None)
