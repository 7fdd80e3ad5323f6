"""What a report of an agent changes, and whether it is the node's at all."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from roost.domain.node import Facts, NodeName
from roost.domain.replica import ObservedShard, PlacementId, ReplicaState
from roost.errors import Conflict, Copied, Forbidden, Unusable
from roost.formats.agent_wire import Report
from roost.formats.unknown_keys import unknown_keys
from roost.reconcile.cards import changes
from roost.reconcile.nodes import NodeStatus, with_missing_gpus
from roost.reconcile.replicas import Replica, observe
from roost.services.clock import Clock
from roost.services.inventory import Inventory, Live
from roost.services.ledger import Ledger
from roost.store.records import Event, NodeRecord

_FREE_BYTES_THAT_MATTER: Final = 10**9

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

log = structlog.get_logger("roost.reports")


class Reports:
    """Takes reports into the inventory and the ledger.

    A report that changes nothing costs a comparison.
    """

    def __init__(
        self,
        ledger: Ledger,
        inventory: Inventory,
        clock: Clock,
        *,
        allowed: tuple[Network, ...] = (),
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._clock = clock
        self._allowed = allowed

    def take(self, name: NodeName, report: Report, *, peer: str | None) -> float:
        """Take a report in; the answer is the interval to the next one."""
        record = self._ledger.nodes[name]
        if report.identity != record.identity:
            raise Forbidden(f"this credential is node {name}'s, and the report is another's")
        live = self._inventory.live(name)
        self.refuse_copy(name, report.boot_id, report=report, peer=peer)
        address = self._address(name, report, peer, record)
        ports = _port_range(report)
        if self._is_old(live, report):
            return self._inventory.interval_s
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
                self._inventory.measured()
        changed |= self._inventory.awaits_exit(name)
        if came_back:
            self._inventory.become(name, live, NodeStatus.READY, "reports")
            changed = True
        if changed:
            self._inventory.changed()
        return self._inventory.interval_s

    def note_unknown_keys(self, name: NodeName, report: Report, body: bytes) -> None:
        """Say once which keys of a newer agent's are ignored here.

        Looking costs more than the report itself: only a report of another kind is looked through.
        """
        live = self._inventory.live(name)
        kind = (report.agent_version, bool(report.shards), bool(report.facts.gpus))
        if kind == live.keys_seen:
            return
        live.keys_seen = kind
        found = frozenset(unknown_keys(body, Report)) - live.unknown_keys
        if found:
            live.unknown_keys |= found
            log.info(
                "report.unknown_keys",
                node=name,
                agent_version=report.agent_version[:64],
                ignored=", ".join(sorted(found)),
            )

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
        live = self._inventory.live(name)
        holder = live.report
        if holder is None or not self._inventory.is_heard(live):
            return
        now = self._clock.monotonic()
        other = boot_id is not None and holder.boot_id is not None and boot_id != holder.boot_id
        # On one machine: an earlier agent that still speaks long after a later one has begun.
        earlier = report is not None and report.started_at < holder.started_at
        if not other and (not earlier or self._inventory.is_new(live)):
            return  # its last report may have been under way when the later one began
        whose = _machine(holder.hostname, self._ledger.nodes[name].address)
        if report is not None:
            live.copy = _machine(report.hostname, _plain(peer))
            live.copy_at = now
        # Agents of one boot may see each other's engines: none is told to stop them.
        raise (Copied if other else Conflict)(
            f"node {name} is {whose}, which reported {now - live.heard_at:.0f} s ago: "
            "this is another machine with a copy of its directory",
            hint="to start anew here: stop the agent, remove its directory (DIR/agent), "
            "and join with a token of its own: roost ctl token create",
        )

    def _is_old(self, live: Live, report: Report) -> bool:
        """An older report that arrives late changes nothing."""
        if report.started_at < live.order[0] and not self._inventory.is_heard(live):
            # The agent before it has ended, and the machine's clock was set back meanwhile.
            live.acked_revision, live.acked_at = 0, (0, -1)
        elif (report.started_at, report.sequence) <= live.order:
            return True
        if report.started_at != live.order[0]:
            live.agent_since = self._clock.monotonic()
        return False

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
