"""What is known of each node now: its silence, what it runs, and what is gone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import structlog

from roost.domain.node import Facts, Node, NodeName
from roost.domain.replica import Load, ObservedShard, PlacementId, ReplicaState
from roost.formats.agent_wire import Report
from roost.reconcile.nodes import (
    LeaseRules,
    NodeStatus,
    judge,
    report_interval_s,
)
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.reconcile.world import Orphan
from roost.services.clock import Clock
from roost.services.ledger import Ledger
from roost.store.records import Event, Stored

LEASES: Final = LeaseRules()
_STILL_THERE: Final = 2
"""Intervals of silence after which another machine may go on as a node: the first has ended."""
_TOLD_S: Final = 300.0
"""How long `ctl node` tells of another machine that would have been the node."""
_STALL_S: Final = 5.0
"""A tick that comes so late was not waited for by agents alone: the server itself was away."""

log = structlog.get_logger("roost.inventory")


@dataclass(slots=True, kw_only=True)
class Live:
    """What is known of one node in this life of the server."""

    heard_at: float
    """By the monotonic clock; when the server started, for a node that has not reported since."""
    heard: bool = False
    status: NodeStatus = NodeStatus.READY
    status_since: float = 0
    report: Report | None = None
    facts: Facts | None = None
    """As reported, and the cards that are held and no longer listed."""
    shards: Mapping[tuple[PlacementId, int], ObservedShard] = field(default_factory=dict)
    measured_at: float = 0
    acked_revision: int = 0
    """Of this server's epoch: the desired state that the agent asked for more than."""
    acked_at: tuple[float, int] = (0, -1)
    """The order of the last report before that."""
    weighed: Facts | None = None
    """The facts the scheduler was last woken for."""
    keys_seen: tuple[str, bool, bool] | None = None
    """What kind of report was last looked through for keys unknown here."""
    unknown_keys: frozenset[str] = frozenset()
    """All that were found, and said."""
    agent_since: float = 0
    """When the present agent process was heard first, by the monotonic clock."""
    copy: str | None = None
    """Another machine that would be this node, told to people."""
    copy_at: float = 0

    @property
    def order(self) -> tuple[float, int]:
        """Of its reports: agent's start, sequence."""
        return (self.report.started_at, self.report.sequence) if self.report else (0, -1)


class Inventory:
    """The live half of every node."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        rules: LeaseRules = LEASES,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._rules = rules
        self._started = clock.monotonic()
        self._ticked = self._started
        self._live: dict[NodeName, Live] = {}
        self.held_back: frozenset[NodeName] = frozenset()
        self.tombstoned_at: dict[tuple[PlacementId, NodeName], int] = {}
        """From which revision of the node's desired state on it is told to stop the placement."""
        self.on_change: list[Callable[[], None]] = []
        """Called when the scheduler's answer could differ."""
        self.on_load: list[Callable[[], None]] = []
        """Called when only a measurement differs."""
        lost = {
            node
            for replica in ledger.replicas.values()
            if replica.wish is Wish.LOST
            for node in replica.nodes
        }
        for name in ledger.nodes:
            self._join(name, NodeStatus.LOST if name in lost else NodeStatus.READY)
        ledger.listen(self._committed)

    def live(self, name: NodeName) -> Live:
        """The live half of a node that joined."""
        return self._live.get(name) or self._join(name, NodeStatus.READY)

    def _join(self, name: NodeName, status: NodeStatus) -> Live:
        live = Live(
            heard_at=self._clock.monotonic(), status=status, status_since=self._clock.time()
        )
        self._live[name] = live
        return live

    def _committed(self, before: Stored, after: Stored) -> None:
        if before.nodes is after.nodes:
            return
        for name in before.nodes.keys() - after.nodes.keys():
            self._live.pop(name, None)
        for name in after.nodes.keys() - before.nodes.keys():
            self.live(name)

    @property
    def interval_s(self) -> float:
        """How often agents are to report."""
        return max(self._rules.interval_s, report_interval_s(len(self._ledger.nodes)))

    def is_heard(self, live: Live) -> bool:
        """Whether its machine is there: it spoke within the last two intervals."""
        return live.heard and self._clock.monotonic() - live.heard_at < (
            _STILL_THERE * self.interval_s
        )

    def is_new(self, live: Live) -> bool:
        """Whether its agent has spoken for less than two intervals."""
        return self._clock.monotonic() - live.agent_since < _STILL_THERE * self.interval_s

    def changed(self) -> None:
        """Tell those who listen that the scheduler's answer could differ."""
        for call in self.on_change:
            call()

    def measured(self) -> None:
        """Tell those who listen that only a measurement differs."""
        for call in self.on_load:
            call()

    def told_of_copy(self, name: NodeName) -> str | None:
        """The other machine that was refused as this node lately."""
        live = self.live(name)
        if live.copy is None or self._clock.monotonic() - live.copy_at > _TOLD_S:
            return None
        return (
            f"{live.copy} has a copy of this node's directory, and is refused: "
            "remove DIR/agent there, and let it join anew"
        )

    # Silence.

    def tick(self) -> None:
        """Judge every node's silence; called each second, and when somebody is heard again."""
        now, wall = self._clock.monotonic(), self._clock.time()
        if now - self._ticked > _STALL_S:
            log.warning("inventory.stalled", for_s=round(now - self._ticked, 1))
            for live in self._live.values():
                live.heard_at = now
        self._ticked = now
        silent = {
            # One that was lost before this server started stays lost until it is heard.
            name: self._rules.lost_after_s
            if live.status is NodeStatus.LOST and not live.heard
            else now - live.heard_at
            for name, live in self._live.items()
        }
        rules = replace(self._rules, interval_s=self.interval_s)
        judged = judge(silent, {n: live.status for n, live in self._live.items()}, rules)
        moved = False
        for name, status in judged.status.items():
            live = self._live[name]
            if status is live.status:
                continue
            moved = True
            self.become(name, live, status, f"silent for {silent[name]:.0f} s")
        if judged.held_back and not self.held_back:
            why = (
                f"{len(judged.held_back)} of {len(self._live)} nodes fell silent together: "
                "nothing is moved until they report or are deleted"
            )
            log.warning("fleet.vanished", why=why)
            self._ledger.note(
                Event(at=wall, who="server", what="fleet.vanished", object="fleet", why=why)
            )
        self.held_back = judged.held_back
        if moved:
            self.changed()

    def become(self, name: NodeName, live: Live, status: NodeStatus, why: str) -> None:
        """Give a node another status, with the reason in the log and the history."""
        if status is live.status:
            return
        now = self._clock.time()
        live.status, live.status_since = status, now
        log.info("node.status", node=name, status=status.value, why=why)
        self._ledger.note(
            Event(at=now, who="server", what=f"node.{status.value}", object=name, why=why)
        )

    @property
    def settled(self) -> bool:
        """Every node has been heard in this life of the server, or was given the time to."""
        uptime = self._clock.monotonic() - self._started
        return uptime >= self._rules.not_ready_after_s or all(
            live.heard for live in self._live.values()
        )

    # Tombstones.

    def acknowledge(self, name: NodeName, revision: int) -> None:
        """The agent has the desired state of this revision."""
        live = self.live(name)
        if revision > live.acked_revision:
            live.acked_revision = revision
            live.acked_at = live.order

    def gone(self) -> dict[PlacementId, frozenset[int]]:
        """Of each stopped placement the ranks whose agents have reported them gone."""
        found = (
            (
                replica.placement,
                frozenset(shard.rank for shard in replica.shards if self._is_gone(replica, shard)),
            )
            for replica in self._ledger.replicas.values()
            if replica.wish is Wish.STOP
        )
        return {placement: ranks for placement, ranks in found if ranks}

    def _is_gone(self, replica: Replica, shard: Shard) -> bool:
        if not replica.is_told_to_stop(shard):
            return False
        live = self._live.get(shard.node)
        if live is None or not live.heard:
            return False
        if live.acked_revision < self.tombstoned_at.get((replica.placement, shard.node), 1):
            return False
        listed = live.shards.get((replica.placement, shard.rank))
        if listed is not None:
            return listed.state is ReplicaState.STOPPED
        started, sequence = live.order
        acked_started, acked_sequence = live.acked_at
        if started != acked_started:
            return started > acked_started
        # One that was never listed may be younger than a report that was under way.
        return sequence > acked_sequence + (0 if shard.seen else 1)

    def awaits_exit(self, name: NodeName) -> bool:
        """Something that stopped on the node is gone there and is still in the ledger."""
        return any(
            shard.node == name and self._is_gone(replica, shard)
            for replica in self._ledger.on_node(name)
            for shard in replica.shards
        )

    # What the scheduler and people look at.

    def status(self, name: NodeName) -> NodeStatus:
        """A node's status now."""
        return self.live(name).status

    def silence_s(self, name: NodeName) -> float | None:
        """How long ago it reported; `None`: not in this life of the server."""
        live = self.live(name)
        return self._clock.monotonic() - live.heard_at if live.heard else None

    def lost(self) -> dict[NodeName, float]:
        """Lost nodes, and for how many seconds each has been silent."""
        now = self._clock.monotonic()
        return {
            name: now - live.heard_at
            for name, live in self._live.items()
            if live.status is NodeStatus.LOST
        }

    def back(self) -> frozenset[NodeName]:
        """Nodes that have reported to this server and are not lost."""
        return frozenset(
            name
            for name, live in self._live.items()
            if live.heard and live.status is not NodeStatus.LOST
        )

    def nodes(self) -> tuple[Node, ...]:
        """Every node as placement sees it."""
        return tuple(self.node(name) for name in sorted(self._ledger.nodes))

    def node(self, name: NodeName) -> Node:
        """One node as placement sees it."""
        record, live = self._ledger.nodes[name], self.live(name)
        facts = live.facts or record.facts
        ready = (
            live.status is NodeStatus.READY
            and facts is not None
            and not self._runs_the_unexplained(live)
        )
        since = datetime.fromtimestamp(live.status_since, UTC).strftime("%H:%M:%S")
        return Node(
            name=name,
            facts=facts or Facts(),
            ready=ready,
            not_ready_since=None if ready else since,
            cordoned=record.cordoned or record.draining,
            cordon_reason=record.cordon_reason,
            draining=record.draining,
        )

    def _runs_the_unexplained(self, live: Live) -> bool:
        """Engines that nobody here gave it, and it has not said yet what they hold.

        An agent says so once it has heard that they are not in the desired state: until then its
        cards and its memory look free and are not.
        """
        return any(
            shard.spec is None
            and shard.state is not ReplicaState.STOPPED
            and shard.placement not in self._ledger.replicas
            for shard in live.shards.values()
        )

    def orphans(self) -> tuple[Orphan, ...]:
        """Placements that agents run and that nobody gave them."""
        found: dict[PlacementId, dict[int, tuple[NodeName, ObservedShard]]] = {}
        for name, live in self._live.items():
            for (placement, rank), shard in live.shards.items():
                if shard.spec is not None and not self._is_given(placement, rank, name):
                    found.setdefault(placement, {})[rank] = (name, shard)
        return tuple(self._orphan(placement, ranks) for placement, ranks in sorted(found.items()))

    def _orphan(
        self, placement: PlacementId, ranks: Mapping[int, tuple[NodeName, ObservedShard]]
    ) -> Orphan:
        shards = {rank: (name, shard.spec) for rank, (name, shard) in ranks.items() if shard.spec}
        return Orphan(
            placement=placement,
            shards=shards,
            usable=all(
                self._usable(name, spec.host, spec.port)
                and (rank > 0 or self._usable(name, spec.host, spec.group_port or spec.port))
                and spec.placement == placement
                and spec.rank == rank
                for rank, (name, spec) in shards.items()
            )
            and placement not in self._ledger.replicas,
        )

    def _is_given(self, placement: PlacementId, rank: int, node: NodeName) -> bool:
        """Somebody here gave it; a part of a group that was away is not in the others' tombstone.

        Of what is wanted, another node's word changes nothing.
        """
        replica = self._ledger.replicas.get(placement)
        return replica is not None and (
            replica.wish is not Wish.STOP
            or any((shard.rank, shard.node) == (rank, node) for shard in replica.shards)
        )

    def _usable(self, name: NodeName, host: str, port: int) -> bool:
        record = self._ledger.nodes[name]
        first, last = record.port_range or (1024, 65535)
        return host == record.address and first <= port <= last

    def load(self, replica: Replica) -> Load | None:
        """What rank 0 said of its load, with its age now; `None`: not measured, or too long ago."""
        observed = self.observed(replica)
        if observed is None or observed.load is None:
            return None
        live = self.live(replica.shards[0].node)
        age = observed.load.age_s + self._clock.monotonic() - live.measured_at
        return replace(observed.load, age_s=age) if live.status is NodeStatus.READY else None

    def observed(self, replica: Replica) -> ObservedShard | None:
        """Rank 0 as its agent reported it last."""
        first = replica.shards[0]
        return self.live(first.node).shards.get((replica.placement, first.rank))

    def taken_ports(self) -> Iterable[tuple[PlacementId, int, int]]:
        """Placements whose engine could not bind its port: placement, rank, that port."""
        for live in self._live.values():
            for (placement, rank), shard in live.shards.items():
                if shard.port_taken and shard.port is not None:
                    yield placement, rank, shard.port

    def ports_taken(self, name: NodeName) -> frozenset[int]:
        """Ports of a node that somebody else uses."""
        report = self.live(name).report
        return frozenset(report.ports_taken) if report is not None else frozenset()
