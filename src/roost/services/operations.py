"""What an operator does: apply, delete, cordon, drain, hand out keys. Each is an event."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import NodeName
from roost.engines.rules import broken
from roost.errors import Conflict, NotFound, Unusable
from roost.formats.catalog import parse_catalog
from roost.reconcile.nodes import NodeStatus
from roost.reconcile.replicas import Replica, Wish
from roost.services.clock import Clock
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.secrets import KEY_PREFIX, new_secret, sha256
from roost.store.records import (
    CatalogText,
    Change,
    Drop,
    Event,
    KeyRecord,
    ModelRecord,
    NodeRecord,
    Put,
)

_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """What applying a catalog does to one model."""

    model: ModelName
    change: str
    """`added`, `changed` or `unchanged`."""


class Operations:
    """Every one is stored before it is answered."""

    def __init__(self, ledger: Ledger, inventory: Inventory, clock: Clock) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._clock = clock

    # The catalog.

    def parse(self, text: str, filename: str) -> Catalog:
        """The catalog, or every problem of it."""
        return parse_catalog(text, filename=filename, rules=broken)

    def merged(self, catalog: Catalog) -> Catalog:
        """The applied catalog as it would be: models that the file doesn't name stay."""
        named = {model.name: model for model in catalog.models}
        kept = [named.pop(m.name, m) for m in self._ledger.catalog.models]
        return Catalog(models=(*kept, *named.values()))

    async def apply(
        self, text: str, *, filename: str, who: str, dry_run: bool = False
    ) -> tuple[ModelChange, ...]:
        """Store what is wanted, whole or not at all."""
        catalog = self.parse(text, filename)
        async with self._ledger.turn():
            self._refuse_shared_names(catalog, filename)
            stored = self._ledger.stored.models
            changes = tuple(
                ModelChange(model=model.name, change=self._change(model))
                for model in catalog.models
            )
            fleet = self._ledger.fleet
            if dry_run:
                return changes
            now = self._clock.time()
            position = max((record.position for record in stored.values()), default=-1) + 1
            puts: list[Change] = []
            events: list[Event] = []
            for at, (model, change) in enumerate(zip(catalog.models, changes, strict=True)):
                if change.change == "unchanged":
                    continue
                known = stored.get(model.name)
                where = position + at if known is None else known.position
                puts.append(Put(record=ModelRecord(model=model, position=where)))
                what = f"model.{change.change}"
                events.append(Event(at=now, who=who, what=what, object=model.name, why=filename))
            if fleet.adopting:
                puts.append(Put(record=replace(fleet, adopting=False)))
            if puts:
                applied = CatalogText(at=now, who=who, filename=filename, text=text)
                await self._ledger.commit(puts, events=events, catalog=applied)
            return changes

    def _change(self, model: Model) -> str:
        known = self._ledger.stored.models.get(model.name)
        if known is None:
            return "added"
        return "unchanged" if known.model == model else "changed"

    def _refuse_shared_names(self, catalog: Catalog, filename: str) -> None:
        merged = self.merged(catalog)
        named = {model.name for model in catalog.models}
        holders: dict[str, ModelName] = {}
        problems = []
        for model in merged.models:
            for name in (model.name, *model.aliases):
                holder = holders.setdefault(name, model.name)
                if holder != model.name:
                    new, old = (model.name, holder) if model.name in named else (holder, model.name)
                    problems.append(f"{filename}: {new}: the name {name} is already {old}'s")
        if problems:
            raise Unusable(problems[0], problems=tuple(problems))

    async def delete_model(self, name: ModelName, *, who: str) -> None:
        """It is no longer wanted: its replicas drain and stop."""
        async with self._ledger.turn():
            record = self._ledger.stored.models.get(name)
            if record is None:
                raise NotFound(f"there is no model {name}", hint="roost ctl models")
            event = Event(at=self._clock.time(), who=who, what="model.deleted", object=name)
            await self._ledger.commit([Drop(record=record)], events=[event])

    # Nodes.

    async def cordon(self, name: NodeName, *, reason: str | None, drain: bool, who: str) -> None:
        """Nothing new goes there; with `drain` what is there moves away."""
        async with self._ledger.turn():
            record = self.node(name)
            event = Event(
                at=self._clock.time(),
                who=who,
                what="node.draining" if drain else "node.cordoned",
                object=name,
                why=reason or "",
            )
            cordoned = replace(
                record, cordoned=True, cordon_reason=reason, draining=drain or record.draining
            )
            await self._ledger.commit([Put(record=cordoned)], events=[event])

    async def uncordon(self, name: NodeName, *, who: str, reason: str | None = None) -> None:
        """New things go there again."""
        async with self._ledger.turn():
            record = self.node(name)
            event = Event(
                at=self._clock.time(),
                who=who,
                what="node.uncordoned",
                object=name,
                why=reason or "",
            )
            free = replace(record, cordoned=False, cordon_reason=None, draining=False)
            await self._ledger.commit([Put(record=free)], events=[event])

    async def delete_node(self, name: NodeName, *, who: str) -> None:
        """The machine is gone for good: what it held is free, what it ran is placed elsewhere."""
        async with self._ledger.turn():
            record = self.node(name)
            silence = self._inventory.silence_s(name)
            if silence is not None and self._inventory.status(name) is NodeStatus.READY:
                raise Conflict(
                    f"node {name} reported {silence:.0f} s ago",
                    hint=f"stop its agent first, or keep work away: roost ctl cordon {name}",
                )
            now = self._clock.time()
            released = self._ledger.on_node(name)
            changes: list[Change] = [_without(replica, name) for replica in released]
            changes.append(Drop(record=record))
            events = [
                Event(at=now, who=who, what="replica.released", object=r.name, why="node deleted")
                for r in released
            ]
            events.append(Event(at=now, who=who, what="node.deleted", object=name))
            await self._ledger.commit(changes, events=events)

    def node(self, name: NodeName) -> NodeRecord:
        """The node of this name."""
        record = self._ledger.nodes.get(name)
        if record is None:
            raise NotFound(f"there is no node {name}", hint="roost ctl nodes")
        return record

    # Keys.

    async def create_key(self, name: str, *, who: str) -> str:
        """A client's key: its text is shown once and stored as a digest."""
        if not _KEY_NAME.fullmatch(name):
            raise Unusable(
                f"{name[:80]!r} cannot be a key's name: letters, digits, . _ @ -, 63 at most"
            )
        text, now = new_secret(KEY_PREFIX), self._clock.time()
        record = KeyRecord(name=name, sha256=sha256(text), ending=text[-4:], created_at=now)
        async with self._ledger.turn():
            if name in self._ledger.stored.keys:
                raise Conflict(
                    f"there is a key {name} already", hint=f"roost ctl keys revoke {name}"
                )
            event = Event(at=now, who=who, what="key.created", object=name)
            await self._ledger.commit([Put(record=record)], events=[event])
        return text

    async def delete_key(self, name: str, *, who: str) -> None:
        """Gateways refuse it from their next snapshot on."""
        async with self._ledger.turn():
            record = self._ledger.stored.keys.get(name)
            if record is None:
                raise NotFound(f"there is no key {name}", hint="roost ctl keys list")
            event = Event(at=self._clock.time(), who=who, what="key.deleted", object=name)
            await self._ledger.commit([Drop(record=record)], events=[event])

    def client_keys(self) -> Sequence[KeyRecord]:
        """By name."""
        return [key for _, key in sorted(self._ledger.stored.keys.items())]


def _without(replica: Replica, node: NodeName) -> Change:
    """A replica falls with its node; its shards elsewhere are stopped there."""
    elsewhere = tuple(shard for shard in replica.shards if shard.node != node)
    if not elsewhere:
        return Drop(record=replica)
    return Put(
        record=replace(
            replica,
            shards=elsewhere,
            wish=Wish.STOP,
            because=f"node {node} was deleted",
            at_once=True,
        )
    )
