"""What should run on each node, whole, for its agent to fetch and wait for."""

from collections.abc import Iterable, Mapping
from typing import Final

from roost.domain.node import NodeName
from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import Desired, PlacementId, ShardSpec
from roost.reconcile.replicas import Replica, Shard
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.watch import Watch
from roost.store.records import Stored

LONGEST_WAIT_S: Final = 60.0


class DesiredState:
    """A revision a node: it grows when what should run there differs, and when the epoch does."""

    def __init__(
        self,
        ledger: Ledger,
        inventory: Inventory,
        watch: Watch,
        *,
        metrics: Mapping[Engine, MetricNames],
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._watch = watch
        self._metrics = metrics
        self.newer_seen: tuple[int, int] | None = None
        """(incarnation, epoch) that an agent has had from this fleet and that is ahead of ours, or
        ours with a revision that it was not told here.
        """
        ledger.listen(self._committed)

    async def fetch(
        self, node: NodeName, *, revision: int, incarnation: int, epoch: int, wait_s: float
    ) -> Desired | None:
        """The desired state once it differs from what the agent has; `None`: it doesn't yet."""
        known = (incarnation, epoch)
        ours = (self._ledger.fleet.incarnation, self._ledger.epoch)
        told_here = known == ours and self._watch.has_been(_topic(node), revision)
        if known > ours or (known == ours and not told_here):
            self.newer_seen = known
        if told_here:
            self._inventory.acknowledge(node, revision)
            wait = min(max(wait_s, 0.0), LONGEST_WAIT_S)
            if not await self._watch.change(_topic(node), revision, timeout_s=wait):
                return None
        return self.of(node)

    def of(self, node: NodeName) -> Desired:
        """The desired state of a node now."""
        fleet = self._ledger.fleet
        replicas = sorted(self._ledger.on_node(node), key=lambda r: (r.name, r.placement))
        return Desired(
            fleet=fleet.fleet,
            incarnation=fleet.incarnation,
            epoch=self._ledger.epoch,
            revision=self._watch.revision(_topic(node)),
            run=tuple(
                _spec(replica, shard, self._metrics)
                for replica in replicas
                for shard in replica.shards
                if shard.node == node and not replica.is_told_to_stop(shard)
            ),
            stop=tuple(replica.placement for replica in replicas if node in _told_to_stop(replica)),
            report_interval_s=self._inventory.interval_s,
        )

    def _committed(self, before: Stored, after: Stored) -> None:
        moved: set[NodeName] = set()
        if before.fleet != after.fleet:
            moved.update(after.nodes)
        for placement in before.replicas.keys() | after.replicas.keys():
            old, new = before.replicas.get(placement), after.replicas.get(placement)
            if old is new or (old and new and _told(old) == _told(new)):
                continue
            moved.update(node for one in (old, new) if one for node in one.nodes)
            if old is not None:
                for node in set(old.nodes) - set(new.nodes if new else ()):
                    self._inventory.tombstoned_at.pop((placement, node), None)
        self._watch.bump(_topic(node) for node in moved)
        for placement, new in after.replicas.items():
            was = before.replicas.get(placement)
            if was is not new:
                told = _told_to_stop(was) if was else frozenset()
                self._mark(placement, _told_to_stop(new) - told)

    def _mark(self, placement: PlacementId, nodes: Iterable[NodeName]) -> None:
        for node in nodes:
            revision = self._watch.revision(_topic(node))
            self._inventory.tombstoned_at[placement, node] = revision


def _topic(node: NodeName) -> str:
    return f"desired/{node}"


def _told(replica: Replica) -> tuple[object, ...]:
    """Of a replica, what its agents are told; the rest is what they told us."""
    return (
        _told_to_stop(replica),
        replica.profile,
        replica.generation,
        replica.hold,
        tuple(
            (
                shard.rank,
                shard.node,
                shard.host,
                shard.port,
                shard.group_port,
                shard.key,
                shard.gpus,
                shard.hcas,
            )
            for shard in replica.shards
        ),
    )


def _told_to_stop(replica: Replica) -> frozenset[NodeName]:
    """The nodes whose agents are told to stop their part of it."""
    return frozenset(shard.node for shard in replica.shards if replica.is_told_to_stop(shard))


def _spec(replica: Replica, shard: Shard, metrics: Mapping[Engine, MetricNames]) -> ShardSpec:
    return ShardSpec(
        placement=replica.placement,
        rank=shard.rank,
        replica=replica.name,
        model=replica.model,
        index=replica.index,
        profile=replica.profile,
        host=shard.host,
        port=shard.port,
        key=shard.key,
        gpus=shard.gpus,
        gpu_uuids=tuple(shard.gpu_uuids),
        hcas=shard.hcas,
        memory_bytes=shard.memory_bytes,
        disk_bytes=shard.disk_bytes,
        metrics=metrics.get(replica.profile.engine),
        peers=tuple(one.host for one in replica.shards) if replica.is_group else (),
        group_port=replica.shards[0].group_port,
        generation=replica.generation,
        hold=replica.hold,
    )
