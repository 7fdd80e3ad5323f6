"""All that is known and wanted, in memory, as the store has it, and what agents saw since."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog

from roost.domain.model import Catalog
from roost.domain.node import NodeName
from roost.domain.replica import PlacementId
from roost.errors import Deposed, Unavailable, Undecided
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

_TURN_S: Final = 25.0
"""Less than `ctl` waits for an answer."""

log = structlog.get_logger("roost.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What a commit takes to the store."""

    changes: tuple[Change, ...]
    events: tuple[Event, ...]
    catalog: CatalogText | None
    nodes: Mapping[NodeName, NodeRecord]
    """As they were seen, of those that go along."""
    replicas: Mapping[PlacementId, Replica]
    notes: tuple[Event, ...]
    """Of the events those that no change goes with."""


class Ledger:
    """What the store keeps; what agents report is here first, and stored with the next step.

    Whoever reads and then writes does both in one `turn`.
    """

    def __init__(self, store: Store, stored: Stored, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.deposed: asyncio.Future[Deposed] = asyncio.get_running_loop().create_future()
        """Has a result once another server leads."""
        self._lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self._undecided: tuple[Undecided, _Sent] | None = None
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

    @property
    def is_settled(self) -> bool:
        """What is in memory is what the store has: the end of every commit is known."""
        return self._undecided is None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Nobody else writes meanwhile; a commit whose end is not known is found out first.

        `Unavailable`: the others take too long, or the store cannot be asked.
        """
        try:
            async with asyncio.timeout(_TURN_S):
                await self._lock.acquire()
        except TimeoutError:
            raise Unavailable(
                f"other changes have been under way for {_TURN_S:.0f} s; nothing was changed"
            ) from None
        try:
            await self._settle()
            yield
        finally:
            # A commit goes on when its caller is cancelled: nobody reads before it has ended.
            writing, self._writing = self._writing, None
            if writing is None or writing.done():
                self._lock.release()
            else:
                writing.add_done_callback(lambda _: self._lock.release())

    async def commit(
        self,
        changes: Sequence[Change] = (),
        *,
        events: Iterable[Event] = (),
        catalog: CatalogText | None = None,
    ) -> None:
        """Store the changes and what was seen since; all or nothing, in the store and here.

        In a `turn`. `Undecided`: the next turn begins with what has become of it.
        """
        sent = self._sent(tuple(changes), tuple(events), catalog)
        if sent.changes or sent.events or sent.catalog is not None:
            # A caller that is cancelled half-way must not leave memory behind the store.
            self._writing = asyncio.ensure_future(self._send(sent))
            await asyncio.shield(self._writing)

    def _sent(
        self, changes: tuple[Change, ...], events: tuple[Event, ...], catalog: CatalogText | None
    ) -> _Sent:
        nodes, replicas = dict(self._seen_nodes), dict(self._seen_replicas)
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
        return _Sent(
            changes=(*seen, *changes),
            events=(*self._notes, *events),
            catalog=catalog,
            nodes=nodes,
            replicas=replicas,
            notes=tuple(self._notes),
        )

    async def _send(self, sent: _Sent) -> None:
        try:
            await self.store.commit(
                sent.changes, epoch=self.epoch, events=sent.events, catalog=sent.catalog
            )
        except Undecided as error:
            self._undecided = (error, sent)
            raise
        except Deposed as error:
            self.depose(error)
            raise
        self._made(sent, changed(self._stored, sent.changes))

    async def _settle(self) -> None:
        if self._undecided is None:
            return
        error, sent = self._undecided
        try:
            made, stored = await self.store.settled(error, epoch=self.epoch)
        except Deposed as deposed:
            self.depose(deposed)
            raise
        self._undecided = None
        log.info("store.settled", made=made)
        if made and stored is not None:
            self._made(sent, stored)

    def depose(self, error: Deposed) -> None:
        """Another server leads: this one is to end."""
        if not self.deposed.done():
            self.deposed.set_result(error)

    def _made(self, sent: _Sent, stored: Stored) -> None:
        """What was sent is in the store, and `stored` is what it then keeps."""
        stored_notes = set(map(id, sent.notes))
        self._notes = [note for note in self._notes if id(note) not in stored_notes]
        # What was reported while the store was writing is newer and stays.
        for name, node in sent.nodes.items():
            if self._seen_nodes.get(name) is node:
                del self._seen_nodes[name]
        for placement, replica in sent.replicas.items():
            if self._seen_replicas.get(placement) is replica:
                del self._seen_replicas[placement]
        before, self._stored = self._stored, stored
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
