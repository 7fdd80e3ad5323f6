"""All that is known and wanted, in memory, as the store has it, and what agents saw since."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from roost.domain.model import Catalog
from roost.domain.node import NodeName
from roost.domain.replica import PlacementId
from roost.reconcile.replicas import Replica, carried
from roost.store.records import (
    CatalogText,
    Change,
    Event,
    FleetRecord,
    ModelRecord,
    NodeRecord,
    Put,
    Stored,
    changed,
)
from roost.store.store import Store

Listener = Callable[[Stored, Stored], None]


class Ledger:
    """What the store keeps; what agents report is here first, and stored with the next step.

    Whoever reads and then writes holds `lock` from before the reading until after the commit.
    """

    def __init__(self, store: Store, stored: Stored, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.lock = asyncio.Lock()
        self._stored = stored
        self._seen_nodes: dict[NodeName, NodeRecord] = {}
        self._seen_replicas: dict[PlacementId, Replica] = {}
        self._notes: list[Event] = []
        self._listeners: list[Listener] = []
        self._nodes = dict(stored.nodes)
        self._replicas = dict(stored.replicas)
        self._on_node: dict[NodeName, tuple[PlacementId, ...]] = {}
        self._catalog: Catalog | None = None
        self._index()

    @property
    def stored(self) -> Stored:
        """As it is in the store."""
        return self._stored

    @property
    def fleet(self) -> FleetRecord:
        """Which fleet this is."""
        return self._stored.fleet

    @property
    def nodes(self) -> Mapping[NodeName, NodeRecord]:
        """By name, with what was reported last."""
        return self._nodes

    @property
    def replicas(self) -> Mapping[PlacementId, Replica]:
        """By placement, with what was reported last."""
        return self._replicas

    def on_node(self, name: NodeName) -> tuple[Replica, ...]:
        """The replicas that have a shard there."""
        return tuple(self._replicas[placement] for placement in self._on_node.get(name, ()))

    @property
    def catalog(self) -> Catalog:
        """The models in the order in which they were first applied."""
        if self._catalog is None:
            records: list[ModelRecord] = sorted(
                self._stored.models.values(), key=lambda r: (r.position, r.model.name)
            )
            self._catalog = Catalog(models=tuple(record.model for record in records))
        return self._catalog

    def listen(self, listener: Listener) -> None:
        """Call it after each commit, with what was before and what is now."""
        self._listeners.append(listener)

    def see_node(self, record: NodeRecord) -> None:
        """An agent reported something lasting; it is stored with the next step."""
        self._seen_nodes[record.name] = record
        self._nodes[record.name] = record

    def see_replica(self, replica: Replica) -> None:
        """An agent reported another state; it is stored with the next step."""
        self._seen_replicas[replica.placement] = replica
        self._replicas[replica.placement] = replica

    def note(self, event: Event) -> None:
        """An event that no change goes with; it is stored with the next step."""
        self._notes.append(event)
        del self._notes[:-1000]

    @property
    def has_unstored(self) -> bool:
        """Agents or the clock said something that the store doesn't have yet."""
        return bool(self._seen_nodes or self._seen_replicas or self._notes)

    async def commit(
        self,
        changes: Sequence[Change] = (),
        *,
        events: Iterable[Event] = (),
        catalog: CatalogText | None = None,
    ) -> None:
        """Store the changes and what was seen since; all or nothing, in the store and here."""
        # A caller that is cancelled half-way must not leave memory behind the store.
        await asyncio.shield(
            asyncio.ensure_future(self._commit(tuple(changes), tuple(events), catalog))
        )

    async def _commit(
        self, changes: tuple[Change, ...], events: tuple[Event, ...], catalog: CatalogText | None
    ) -> None:
        nodes, replicas = dict(self._seen_nodes), dict(self._seen_replicas)
        notes = tuple(self._notes)
        mine = {
            change.record.name if isinstance(change.record, NodeRecord) else change.record.placement
            for change in changes
            if isinstance(change.record, NodeRecord | Replica)
        }
        seen: list[Change] = [Put(record=node) for name, node in nodes.items() if name not in mine]
        seen += [
            Put(record=replica)
            for placement, replica in replicas.items()
            if placement not in mine and placement in self._stored.replicas
        ]
        every = (*seen, *changes)
        if not every and not events and not notes and catalog is None:
            return
        await self.store.commit(every, epoch=self.epoch, events=(*notes, *events), catalog=catalog)
        del self._notes[: len(notes)]
        # What was reported while the store was writing is newer and stays.
        for name, node in nodes.items():
            if self._seen_nodes.get(name) is node:
                del self._seen_nodes[name]
        for placement, replica in replicas.items():
            if self._seen_replicas.get(placement) is replica:
                del self._seen_replicas[placement]
        before, self._stored = self._stored, changed(self._stored, every)
        self._merge()
        for listener in self._listeners:
            listener(before, self._stored)

    def _merge(self) -> None:
        # What was seen meanwhile is laid over what was decided meanwhile; neither undoes the other.
        self._catalog = None
        stored = self._stored
        self._seen_nodes = {
            name: carried_node(record, onto=stored.nodes[name])
            for name, record in self._seen_nodes.items()
            if name in stored.nodes
        }
        self._seen_replicas = {
            placement: carried(replica, onto=stored.replicas[placement])
            for placement, replica in self._seen_replicas.items()
            if placement in stored.replicas
        }
        self._nodes = {**stored.nodes, **self._seen_nodes}
        self._replicas = {**stored.replicas, **self._seen_replicas}
        self._index()

    def _index(self) -> None:
        on_node: dict[NodeName, list[PlacementId]] = {}
        for placement, replica in self._replicas.items():
            for node in dict.fromkeys(replica.nodes):
                on_node.setdefault(node, []).append(placement)
        self._on_node = {node: tuple(placements) for node, placements in on_node.items()}


def carried_node(seen: NodeRecord, *, onto: NodeRecord) -> NodeRecord:
    """What a node reported, on what the operator said of it."""
    return replace(
        onto,
        facts=seen.facts,
        address=seen.address,
        port_range=seen.port_range,
        agent_version=seen.agent_version,
        boot_id=seen.boot_id,
        hostname=seen.hostname,
    )
