"""Many nodes in one process, over the real agent protocol: what a fleet file says, and engines that
answer.

Each node has an agent's own membership and obedience, and an address of its own in 127.0.0.0/8,
where a `FakeEngine` of this process answers for each replica. Rank 0 of several alone listens.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from roost.agent.backoff import Backoff
from roost.agent.directory import Directory
from roost.agent.membership import Invitation, Membership
from roost.agent.obedience import Obedience
from roost.agent.server import Server
from roost.agent.supervise import procfs
from roost.domain.fleet import Fleet
from roost.domain.node import Node
from roost.domain.replica import (
    Desired,
    Load,
    ObservedShard,
    PlacementId,
    ReplicaState,
    ShardSpec,
)
from roost.errors import NotFound, Refused, RoostError
from roost.formats import agent_wire as wire
from roost.testing.fake_dialects import DIALECTS
from roost.testing.fake_http import FakeEngine
from roost.testing.fake_knobs import knobs
from roost.testing.fake_ranks import Ranks

log = structlog.get_logger()

_PORTS: Final = (20000, 20999)
_POLL_S: Final = 20.0
_SHORTEST_S: Final = 0.2


@dataclass(kw_only=True)
class _Shard:
    """One replica's part, which is ready as soon as it listens."""

    spec: ShardSpec
    since: float
    state: ReplicaState = ReplicaState.READY
    cause: str | None = None
    known: bool = True
    """It is in the desired state; else an orphan, left running and reported with its spec."""
    engine: FakeEngine | None = None
    serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        spec = self.spec
        if spec.rank > 0:
            return
        words = ["--host", spec.host, "--port", str(spec.port), "--alias", spec.model]
        words += ["--slots", str(spec.profile.slots or 4)]
        dialect = spec.profile.engine.value
        words += ["--dialect", dialect if dialect in DIALECTS else "llama.cpp"]
        ranks = Ranks(rank=0, count=1, address=spec.host, port=0)
        await ranks.meet()
        self.engine = FakeEngine(
            asked=knobs(words),
            ranks=ranks,
            say=lambda _: None,
            leave=self._failed,
            key=spec.key,
        )
        self.serving = asyncio.ensure_future(self.engine.serve())

    def stop(self) -> None:
        if self.serving is not None and self.engine is not None:
            self.serving.cancel()
            self.engine.close()
        self.state, self.since = ReplicaState.STOPPED, time.time()

    def _failed(self, _: int) -> None:
        self.state, self.cause = ReplicaState.FAILED, "cannot listen"

    def observed(self) -> ObservedShard:
        load = None
        if self.engine is not None and self.state is ReplicaState.READY:
            load = Load(running=self.engine.running, waiting=self.engine.waiting)
        return ObservedShard(
            placement=self.spec.placement,
            rank=self.spec.rank,
            replica=self.spec.replica,
            state=self.state,
            since=self.since,
            port=self.spec.port,
            cause=self.cause,
            port_taken=self.state is ReplicaState.FAILED,
            slots=None if self.engine is None else self.engine.asked.slots,
            load=load,
            spec=None if self.known else self.spec,
        )

    def moved(self, spec: ShardSpec) -> bool:
        """Whether it is to listen elsewhere now; what runs stays where it is, as real ones do."""
        elsewhere = (spec.host, spec.port) != (self.spec.host, self.spec.port)
        return self.state is ReplicaState.FAILED and elsewhere


@dataclass(kw_only=True)
class FakeNode:
    """One node: joins, reports the facts of its fleet file, obeys."""

    node: Node
    server: Server
    directory: Directory
    invitation: Invitation
    address: str
    reports: int = 0
    """As many as the server took."""
    _shards: dict[PlacementId, _Shard] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _interval_s: float = 5.0
    _started_at: float = field(default_factory=time.time)

    async def run(self) -> None:
        """Until cancelled; its engines end with it."""
        self._membership = Membership(
            self.server,
            self.directory,
            self.invitation,
            luck=lambda: 0.5,
            joined_again=self._changed.set,
        )
        self._obedience = Obedience(self.directory, lambda: self._membership.fleet)
        self._membership.restore()
        try:
            await self._membership.begin()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._for_ever(self._report))
                group.create_task(self._for_ever(self._obey))
        finally:
            for shard in self._shards.values():
                shard.stop()
            await self.server.close()

    async def _for_ever(self, step: Any) -> None:
        backoff = Backoff(lambda: 0.5)
        while True:
            credential = self._membership.credential
            if credential is None:
                return
            try:
                await step(credential.credential)
            except (Refused, NotFound) as cause:
                log.warning("fake_node.refused", node=self.node.name, cause=cause.message)
                with contextlib.suppress(RoostError):
                    await self._membership.again(credential.credential)
                await asyncio.sleep(backoff.next())
            except RoostError as cause:
                if not backoff.failing:
                    log.warning("fake_node.refused", node=self.node.name, cause=cause.message)
                await asyncio.sleep(backoff.next())
            else:
                backoff.worked()

    async def _report(self, credential: str) -> None:
        self._changed.clear()
        self.reports += 1
        report = wire.Report(
            identity=self._membership.identity,
            sequence=self.reports,
            started_at=self._started_at,
            facts=self.node.facts,
            shards=tuple(shard.observed() for shard in self._shards.values()),
            agent_version=self._membership.version,
            boot_id=procfs.boot_id(),
            hostname=self.node.name,
            address=self.address,
            port_range=_PORTS,
        )
        answer = await self.server.report(credential, report)
        self._interval_s = answer.report_interval_s
        await asyncio.sleep(_SHORTEST_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._interval_s)

    async def _obey(self, credential: str) -> None:
        desired = await self.server.desired(credential, self._obedience.known, wait=_POLL_S)
        if desired is not None and self._obedience.accept(desired):
            await self._apply(desired)
            self._changed.set()
        await asyncio.sleep(_SHORTEST_S)

    async def _apply(self, desired: Desired) -> None:
        for spec in desired.run:
            before = self._shards.get(spec.placement)
            if before is None or before.moved(spec):
                shard = self._shards[spec.placement] = _Shard(spec=spec, since=time.time())
                await shard.start()
        wanted = {spec.placement for spec in desired.run}
        for placement, shard in [*self._shards.items()]:
            shard.known = placement in wanted or placement in desired.stop
            if placement in desired.stop:
                shard.stop()
            elif shard.state is ReplicaState.STOPPED:
                # Its tombstone is gone, and nothing of it is kept.
                del self._shards[placement]


async def run_fleet(fleet: Fleet, *, url: str, directory: Path, token_file: Path) -> None:
    """All nodes of a fleet, until cancelled; each keeps its identity below `directory`."""
    async with asyncio.TaskGroup() as group:
        for number, node in enumerate(fleet.nodes):
            own = directory / node.name
            address = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
            own.mkdir(parents=True, exist_ok=True, mode=0o700)
            fake = FakeNode(
                node=node,
                server=Server(url, boot_id=procfs.boot_id(), speak_from=address),
                directory=Directory(own),
                invitation=Invitation(name=node.name, token_file=token_file),
                address=address,
            )
            work: Coroutine[Any, Any, None] = fake.run()
            group.create_task(work)
