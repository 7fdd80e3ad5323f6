"""What each node said last, how long it has been silent, and what that makes of it."""

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import structlog

from roost.domain.node import Facts, Node, NodeName
from roost.domain.replica import Load, ObservedShard, PlacementId, ReplicaState
from roost.errors import Conflict, Forbidden, Unusable
from roost.formats.agent_wire import Report
from roost.reconcile.cards import changes
from roost.reconcile.nodes import (
    LeaseRules,
    NodeStatus,
    judge,
    report_interval_s,
    with_missing_gpus,
)
from roost.reconcile.replicas import Replica, Wish, observe
from roost.reconcile.schedule import Orphan
from roost.services.clock import Clock
from roost.services.ledger import Ledger
from roost.store.records import Event, NodeRecord

LEASES: Final = LeaseRules()
_FREE_BYTES_THAT_MATTER: Final = 10**9
_STILL_THERE: Final = 2
"""Intervals of silence after which another machine may go on as a node: the first has ended."""
_TOLD_S: Final = 300.0
"""How long `ctl node` tells of another machine that would have been the node."""
_STALL_S: Final = 5.0
"""A tick that comes so late was not waited for by agents alone: the server itself was away."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

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
    """The live half of every node; a report that changes nothing costs a comparison."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        rules: LeaseRules = LEASES,
        allowed: tuple[Network, ...] = (),
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._rules = rules
        self._allowed = allowed
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

    # Reports.

    def live(self, name: NodeName) -> Live:
        """The live half of a node that joined."""
        return self._live.get(name) or self._join(name, NodeStatus.READY)

    def _join(self, name: NodeName, status: NodeStatus) -> Live:
        live = Live(
            heard_at=self._clock.monotonic(), status=status, status_since=self._clock.time()
        )
        self._live[name] = live
        return live

    def forget(self, name: NodeName) -> None:
        """The node was deleted."""
        self._live.pop(name, None)

    @property
    def interval_s(self) -> float:
        """How often agents are to report."""
        return max(self._rules.interval_s, report_interval_s(len(self._ledger.nodes)))

    def report(self, name: NodeName, report: Report, *, peer: str | None) -> float:
        """Take a report in; the answer is the interval to the next one."""
        record = self._ledger.nodes[name]
        if report.identity != record.identity:
            raise Forbidden(f"this credential is node {name}'s, and the report is another's")
        live = self.live(name)
        self.refuse_copy(name, report.boot_id, report=report, peer=peer)
        address = self._address(name, report, peer, record)
        ports = _port_range(report)
        if self._is_old(live, report):
            return self.interval_s
        previous, live.report = live.report, report
        now = self._clock.monotonic()
        came_back = not live.heard or live.status is not NodeStatus.READY
        live.heard_at, live.heard = now, True
        live.facts = self._with_held(name, report.facts, record)
        self._note_cards(name, record.facts, live.facts)
        changed = self._see_record(record, report, address, ports, live)
        if previous is None or previous.shards != report.shards:
            changed |= self._see_shards(name, report, live)
            live.measured_at = now
            if not changed:
                for call in self.on_load:
                    call()
        changed |= self._awaits_exit(name)
        if came_back:
            self._become(name, live, NodeStatus.READY, "reports")
            changed = True
        if changed:
            for call in self.on_change:
                call()
        return self.interval_s

    def _note_cards(self, name: NodeName, before: Facts | None, after: Facts) -> None:
        """The history of the cards' health."""
        known = before.gpus if before is not None else None
        if known == after.gpus:
            return
        for change in changes(known, after.gpus):
            log.info(change.what, node=name, why=change.why)
            self._ledger.note(
                Event(
                    at=self._clock.time(),
                    who="agent",
                    what=change.what,
                    object=name,
                    why=change.why,
                )
            )

    def refuse_copy(
        self,
        name: NodeName,
        boot_id: str | None,
        *,
        report: Report | None = None,
        peer: str | None = None,
    ) -> None:
        """Two machines with one directory, a copied disk: the one that reports is the node."""
        live = self.live(name)
        holder = live.report
        if holder is None:
            return
        if not self._is_heard(live):
            return
        now = self._clock.monotonic()
        other = boot_id is not None and holder.boot_id is not None and boot_id != holder.boot_id
        # On one machine: an earlier agent that still speaks long after a later one has begun.
        earlier = report is not None and report.started_at < holder.started_at
        late = now - live.agent_since < _STILL_THERE * self.interval_s
        if not other and (not earlier or late):
            return
        whose = _machine(holder.hostname, self._ledger.nodes[name].address)
        if report is not None:
            live.copy = _machine(report.hostname, _plain(peer))
            live.copy_at = now
        raise Conflict(
            f"node {name} is {whose}, which reported {now - live.heard_at:.0f} s ago: "
            "this is another machine with a copy of its directory",
            hint="to start anew here: stop the agent, remove its directory (DIR/agent), "
            "and join with a token of its own: roost ctl token create",
        )

    def _is_old(self, live: Live, report: Report) -> bool:
        """An older report that arrives late changes nothing."""
        if report.started_at < live.order[0] and not self._is_heard(live):
            # The agent before it has ended, and the machine's clock was set back meanwhile.
            live.acked_revision, live.acked_at = 0, (0, -1)
        elif (report.started_at, report.sequence) <= live.order:
            return True
        if report.started_at != live.order[0]:
            live.agent_since = self._clock.monotonic()
        return False

    def _is_heard(self, live: Live) -> bool:
        silence = self._clock.monotonic() - live.heard_at
        return live.heard and silence < _STILL_THERE * self.interval_s

    def told_of_copy(self, name: NodeName) -> str | None:
        """The other machine that was refused as this node lately."""
        live = self.live(name)
        if live.copy is None or self._clock.monotonic() - live.copy_at > _TOLD_S:
            return None
        return (
            f"{live.copy} has a copy of this node's directory, and is refused: "
            "remove DIR/agent there, and let it join anew"
        )

    def _address(
        self, name: NodeName, report: Report, peer: str | None, record: NodeRecord
    ) -> str | None:
        if report.address is None:
            return _plain(peer) or record.address
        if report.address == record.address:
            return record.address
        try:
            address = ipaddress.ip_address(report.address)
        except ValueError:
            raise Unusable(
                f"the address in the report of {name} is not an IP address: {report.address[:80]!r}"
            ) from None
        address = getattr(address, "ipv4_mapped", None) or address
        plain = str(address)
        if address.is_unspecified or address.is_multicast or address.is_link_local:
            raise Unusable(f"{plain} cannot be the address of {name}: nobody else can reach it")
        if plain == _plain(peer) or any(address in network for network in self._allowed):
            return plain
        log.warning("node.address_refused", node=name, address=plain, peer=peer)
        raise Forbidden(
            f"node {name} gives {plain} as its address and speaks from {peer}",
            hint=f"if its engines are reached at {plain}: roost server --allow-address {plain}",
        )

    def _see_record(
        self,
        record: NodeRecord,
        report: Report,
        address: str | None,
        ports: tuple[int, int] | None,
        live: Live,
    ) -> bool:
        seen = replace(
            record,
            facts=live.facts,
            address=address,
            port_range=ports,
            agent_version=report.agent_version[:64],
            boot_id=report.boot_id,
            hostname=report.hostname,
        )
        if replace(seen, facts=None) != replace(record, facts=None) or not _alike(
            seen.facts, record.facts
        ):
            self._ledger.see_node(seen)
        matters = live.facts is not None and (
            live.weighed is None or _matters(live.facts, live.weighed)
        )
        if matters:
            live.weighed = live.facts
        return matters or address != record.address or ports != record.port_range

    def _see_shards(self, name: NodeName, report: Report, live: Live) -> bool:
        before = live.shards
        live.shards = {(shard.placement, shard.rank): shard for shard in report.shards}
        changed = any(shard.port_taken and not _was_taken(before, shard) for shard in report.shards)
        mine = self._ledger.on_node(name)
        now = self._clock.time()
        for replica in mine:
            ranks = {
                shard.rank: live.shards.get((replica.placement, shard.rank))
                for shard in replica.shards
                if shard.node == name
            }
            after = observe(replica, ranks, now=now)
            if after != replica:
                self._ledger.see_replica(after)
                changed = True
                if after.state is not replica.state:
                    self._say(after)
        given = {replica.placement for replica in mine}

        def others(shards: Iterable[ObservedShard]) -> set[tuple[PlacementId, int, bool]]:
            return {
                (shard.placement, shard.rank, shard.spec is None)
                for shard in shards
                if shard.placement not in given
            }

        return changed or others(live.shards.values()) != others(before.values())

    def _say(self, replica: Replica) -> None:
        log.info(
            "replica.state",
            replica=replica.name,
            placement=replica.placement,
            state=replica.state.value,
            cause=replica.cause,
        )
        if replica.state in {ReplicaState.READY, ReplicaState.FAILED}:
            self._ledger.note(
                Event(
                    at=self._clock.time(),
                    who="agent",
                    what=f"replica.{replica.state.value}",
                    object=replica.name,
                    why=replica.cause or f"on {', '.join(replica.nodes)}",
                )
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
            self._become(name, live, status, f"silent for {silent[name]:.0f} s")
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
            for call in self.on_change:
                call()

    def _become(self, name: NodeName, live: Live, status: NodeStatus, why: str) -> None:
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

    def gone(self) -> frozenset[PlacementId]:
        """The stopped placements that every agent concerned has reported gone."""
        return frozenset(
            replica.placement
            for replica in self._ledger.replicas.values()
            if replica.wish is Wish.STOP and self._is_gone(replica)
        )

    def _is_gone(self, replica: Replica) -> bool:
        return all(
            self._shard_gone(replica.placement, shard.rank, shard.node, seen=shard.seen)
            for shard in replica.shards
        )

    def _shard_gone(self, placement: PlacementId, rank: int, node: NodeName, *, seen: bool) -> bool:
        live = self._live.get(node)
        if live is None or not live.heard:
            return False
        if live.acked_revision < self.tombstoned_at.get((placement, node), 1):
            return False
        listed = live.shards.get((placement, rank))
        if listed is not None:
            return listed.state is ReplicaState.STOPPED
        started, sequence = live.order
        acked_started, acked_sequence = live.acked_at
        if started != acked_started:
            return started > acked_started
        # One that was never listed may be younger than a report that was under way.
        return sequence > acked_sequence + (0 if seen else 1)

    def _awaits_exit(self, name: NodeName) -> bool:
        return any(
            replica.wish is Wish.STOP and self._is_gone(replica)
            for replica in self._ledger.on_node(name)
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

    def _with_held(self, name: NodeName, facts: Facts, record: NodeRecord) -> Facts:
        held = {
            uuid
            for replica in self._ledger.on_node(name)
            for shard in replica.shards
            if shard.node == name
            for uuid in shard.gpu_uuids
        }
        known = {gpu.uuid for gpu in facts.gpus or ()}
        if not held - known or record.facts is None:
            return facts
        before = record.facts.gpus or ()
        return with_missing_gpus(facts, (gpu for gpu in before if gpu.uuid in held))

    def orphans(self) -> tuple[Orphan, ...]:
        """Placements that agents run and that nobody gave them."""
        found: dict[PlacementId, dict[int, tuple[NodeName, ObservedShard]]] = {}
        for name, live in self._live.items():
            for (placement, rank), shard in live.shards.items():
                if shard.spec is not None and placement not in self._ledger.replicas:
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
                and spec.placement == placement
                and spec.rank == rank
                for rank, (name, spec) in shards.items()
            ),
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


def _was_taken(
    before: Mapping[tuple[PlacementId, int], ObservedShard], shard: ObservedShard
) -> bool:
    earlier = before.get((shard.placement, shard.rank))
    return earlier is not None and earlier.port_taken and earlier.port == shard.port


def _machine(hostname: str | None, address: str | None) -> str:
    """A machine as people find it."""
    if hostname is None:
        return f"the machine at {address}" if address else "another machine"
    return f"{hostname[:64]} at {address}" if address else hostname[:64]


def _plain(peer: str | None) -> str | None:
    if peer is None:
        return None
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def _port_range(report: Report) -> tuple[int, int] | None:
    if report.port_range is None:
        return None
    first, last = report.port_range
    if not 1024 <= first <= last <= 65535:
        raise Unusable(f"ports {first} to {last} are not a range within 1024 to 65535")
    return first, last


def _without_free(facts: Facts) -> Facts:
    if not facts.storage:
        return facts
    return replace(facts, storage=tuple(replace(one, free_bytes=None) for one in facts.storage))


def _alike(facts: Facts | None, other: Facts | None) -> bool:
    """Nothing lasting differs: what is free on a disk moves all the time."""
    if facts is None or other is None:
        return facts is other
    return _without_free(facts) == _without_free(other)


def _matters(facts: Facts, weighed: Facts) -> bool:
    """The difference could change a placement."""
    if facts == weighed:
        return False
    if not _alike(facts, weighed):
        return True
    return any(
        (one.free_bytes is None) != (other.free_bytes is None)
        or abs((one.free_bytes or 0) - (other.free_bytes or 0)) >= _FREE_BYTES_THAT_MATTER
        for one, other in zip(facts.storage or (), weighed.storage or (), strict=True)
    )
