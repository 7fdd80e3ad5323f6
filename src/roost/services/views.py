"""Nodes, models, replicas, orphans as the management API and `ctl` show them."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from roost.domain.allocation import Allocation, replica_name
from roost.domain.model import Model, ModelName
from roost.domain.node import NodeName
from roost.domain.replica import ReplicaState
from roost.errors import NotFound
from roost.formats.decision import decision_to_json
from roost.formats.fleet import allocation_to_json, node_to_json
from roost.reconcile.board import Decided
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.reconcile.schedule import fleet_of
from roost.services.inventory import Inventory
from roost.services.ledger import Ledger
from roost.services.operations import Operations
from roost.services.scheduler import Scheduler

Row = dict[str, Any]


class Views:
    """Everything is read from memory, at one moment."""

    def __init__(
        self,
        ledger: Ledger,
        inventory: Inventory,
        scheduler: Scheduler,
        operations: Operations,
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._scheduler = scheduler
        self._operations = operations

    def nodes(self) -> Row:
        """The fleet in the format that `roost plan --fleet` reads."""
        fleet = fleet_of(self._scheduler.world())
        return {
            "nodes": [self.node(node.name) for node in fleet.nodes],
            "allocations": [allocation_to_json(held) for held in fleet.allocations],
        }

    def allocations(self) -> tuple[Allocation, ...]:
        """What replicas hold, as placement sees it."""
        fleet = fleet_of(self._scheduler.world())
        return tuple(fleet.allocations)

    def node(self, name: NodeName) -> Row:
        """One node: its facts, and how it is."""
        record = self._operations.node(name)
        live = self._inventory.live(name)
        silence = self._inventory.silence_s(name)
        problems = list(live.report.problems) if live.report is not None else []
        if (copy := self._inventory.told_of_copy(name)) is not None:
            problems.append(copy)
        if name in self._inventory.held_back:
            problems.append("silent together with much of the fleet: nothing of it is moved")
        return {
            **node_to_json(self._inventory.node(name)),
            "draining": record.draining,
            "status": live.status.value,
            "last_report_age_s": None if silence is None else round(silence, 1),
            "agent_version": record.agent_version or None,
            "address": record.address,
            "hostname": record.hostname,
            "joined_at": moment(record.joined_at),
            "problems": problems,
        }

    def whole_node(self, name: NodeName) -> Row:
        """One node with what only people ask for: cards by address, adapters by port."""
        told = self.node(name)
        facts = self._inventory.node(name).facts
        more = {"gpu_details": facts.gpu_details, "hcas": facts.hcas}
        return {**told, **msgspec.to_builtins(more)}

    def models(self) -> Row:
        """Every model that is wanted."""
        return {"models": [self._model(model) for model in self._ledger.catalog.models]}

    def _model(self, model: Model) -> Row:
        mine = [r for r in self._ledger.replicas.values() if r.model == model.name]
        running = [replica for replica in mine if replica.wish is Wish.RUN]
        ready = len({replica.index for replica in running if replica.is_ready})
        return {
            "model": model.name,
            "aliases": list(model.aliases),
            "replicas": model.replicas,
            "ready": ready,
            "priority": model.priority,
            "profiles": [profile.name for profile in model.profiles],
            "state": self._state(model, ready, running),
        }

    def _state(self, model: Model, ready: int, running: Sequence[Replica]) -> str:
        if model.replicas == 0:
            return "stopped"
        if ready >= model.replicas:
            return "ready"
        if ready:
            return "degraded"
        states = {replica.state for replica in running}
        for state in (
            ReplicaState.LOADING,
            ReplicaState.STARTING,
            ReplicaState.PLACED,
            ReplicaState.FAILED,
        ):
            if state in states:
                return state.value
        return ReplicaState.PENDING.value

    def replicas(self, model: ModelName | None = None) -> list[Row]:
        """Every placement that holds something, and every replica that waits for a place."""
        held = [
            self._replica(replica)
            for replica in self._ledger.replicas.values()
            if model is None or replica.model == model
        ]
        waiting = [
            self._pending(name, index, since)
            for (name, index), since in self._scheduler.pending_since.items()
            if model is None or name == model
        ]
        return sorted(
            held + waiting, key=lambda r: (r["model"], r["index"], r["since"], r["placement"] or "")
        )

    def _replica(self, replica: Replica) -> Row:
        lost = replica.wish is Wish.LOST
        load = self._inventory.load(replica)
        seen = self._inventory.observed(replica)
        return {
            "replica": replica.name,
            "model": replica.model,
            "index": replica.index,
            "placement": replica.placement,
            "profile": replica.profile.name,
            "state": "lost" if lost else replica.state.value,
            "since": moment(replica.since),
            "restarts": replica.restarts,
            "cause": (replica.because or replica.cause) if lost else replica.cause,
            "next_try_at": self._next_try_at(replica),
            "because": replica.because,
            "shards": [self._shard(shard) for shard in replica.shards],
            "running": None if load is None else load.running,
            "waiting": None if load is None else load.waiting,
            "kv_usage": None if load is None else load.kv_usage,
            "unmeasured": [] if seen is None else list(seen.unmeasured),
        }

    def _next_try_at(self, replica: Replica) -> str | None:
        """When a failed one is started again: by its agent's clock, on several nodes by ours."""
        if replica.state is not ReplicaState.FAILED:
            return None
        if replica.is_group:
            return None if replica.restart_at is None else moment(replica.restart_at)
        seen = self._inventory.observed(replica)
        return None if seen is None or seen.due is None else moment(seen.due)

    def _shard(self, shard: Shard) -> Row:
        return {
            "rank": shard.rank,
            "node": shard.node,
            "pid": shard.pid,
            "host": shard.host,
            "port": shard.port,
            "gpus": list(shard.gpus),
            "gpu_uuids": list(shard.gpu_uuids),
            "hcas": list(shard.hcas),
            "state": shard.state.value,
            "node_status": self._inventory.status(shard.node).value,
        }

    def _pending(self, model: ModelName, index: int, since: float) -> Row:
        return {
            "replica": replica_name(model, index),
            "model": model,
            "index": index,
            "placement": None,
            "profile": None,
            "state": ReplicaState.PENDING.value,
            "since": moment(since),
            "restarts": 0,
            "cause": self._scheduler.waiting.get((model, index)) or self._why_waiting(),
            "next_try_at": None,
            "because": None,
            "shards": [],
            "running": None,
            "waiting": None,
            "kv_usage": None,
            "unmeasured": [],
        }

    def _why_waiting(self) -> str | None:
        if self._scheduler.last_error:
            return self._scheduler.last_error
        if not self._inventory.settled:
            return "the server has just started and waits for its nodes to report"
        return None

    def find(self, name: str) -> Replica:
        """The replica of this name (or placement), the one that counts before others."""
        found = [
            replica
            for replica in self._ledger.replicas.values()
            if name in {replica.name, replica.placement}
        ]
        if not found:
            pending = {replica_name(*wanted) for wanted in self._scheduler.pending_since}
            if name in pending:
                raise NotFound(
                    f"replica {name} has no place yet, so it has no log",
                    hint=f"roost ctl explain {name.rpartition('-')[0]}",
                )
            raise NotFound(f"there is no replica {name}", hint="roost ctl replicas")
        return max(found, key=lambda r: (r.wish is Wish.RUN, r.created_at))

    async def explain(self, name: ModelName, *, brief: bool) -> Row:
        """Why a model's replicas are where they are, or nowhere."""
        catalog = self._ledger.catalog
        model = next((m for m in catalog.models if name in {m.name, *m.aliases}), None)
        if model is None:
            raise NotFound(f"there is no model {name}", hint="roost ctl models")
        decided = await self._scheduler.decide()
        mine = [one for one in decided if one.decision.model == model.name]
        written = await asyncio.to_thread(_written, mine, brief=brief)
        return {"model": model.name, "replicas": self.replicas(model.name), **written}

    async def plan(self, text: str, filename: str, *, brief: bool) -> Row:
        """What applying this catalog would place where; nothing is changed."""
        catalog = self._operations.parse(text, filename)
        named = {model.name for model in catalog.models}
        decided = await self._scheduler.decide(self._operations.merged(catalog))
        mine = [one for one in decided if one.decision.model in named]
        return await asyncio.to_thread(_written, mine, brief=brief)

    def orphans(self) -> Row:
        """Engines that agents run and that nobody here gave them."""
        return {
            "orphans": [
                {
                    "placement": orphan.placement,
                    "replica": orphan.spec.replica,
                    "model": orphan.spec.model,
                    "index": orphan.spec.index,
                    "profile": orphan.spec.profile.name,
                    "shards": [
                        {
                            "rank": rank,
                            "node": node,
                            "host": spec.host,
                            "port": spec.port,
                            "gpus": list(spec.gpus),
                        }
                        for rank, (node, spec) in sorted(orphan.shards.items())
                    ],
                }
                for orphan in self._inventory.orphans()
            ]
        }


def _written(decided: Sequence[Decided], *, brief: bool) -> Row:
    """FORMATS §3, each replica by its own index."""
    return {
        "decisions": [
            {**decision_to_json(one.decision, brief=brief), "replica": one.index} for one in decided
        ]
    }


def moment(at: float) -> str:
    """A moment as people and programs read it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
