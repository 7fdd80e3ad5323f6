"""One node of a made-up fleet: an agent's own membership, obedience and orders over made-up facts.

What can go wrong with it is in `faults`; its engines are of this process, or processes.
"""

import asyncio
import contextlib
import os
import random
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import httpx2
import structlog

from roost.agent.backoff import Backoff
from roost.agent.directory import Directory
from roost.agent.facts.gpus import gone
from roost.agent.membership import Invitation, Membership
from roost.agent.obedience import Obedience
from roost.agent.orders import Logged, Orders
from roost.agent.server import Server
from roost.agent.supervise import procfs
from roost.agent.supervise.kept import Shelf
from roost.agent.supervise.tools import Tools
from roost.agent.tasks import first
from roost.domain.node import Facts, Node
from roost.domain.profile import Engine
from roost.domain.replica import Desired, ObservedShard, ShardSpec
from roost.errors import NotFound, Refused, RoostError, Unavailable
from roost.formats import agent_wire as wire
from roost.testing.fake_knobs import PROGRAM
from roost.testing.faults import (
    OF_A_CARD,
    OF_AN_ENGINE,
    Fault,
    Kind,
    checked,
    facts_under,
    lost_card,
)

log = structlog.get_logger()

_PORTS: Final = (20000, 20999)
_POLL_S: Final = 20.0
_SHORTEST_S: Final = 0.2
_MODELS: Final = Path("/models")


class Engines(Protocol):
    """What a node runs: `InProcess` or `AsProcesses`."""

    def obey(self, desired: Desired) -> None:
        """Run what is to run, stop what is to stop."""
        ...

    def observed(self) -> tuple[ObservedShard, ...]:
        """Every shard as it is now."""
        ...

    def shard(self, placement: str, rank: int) -> Logged | None:
        """One of them."""
        ...

    def live(self) -> tuple[ShardSpec, ...]:
        """What the engines that run were started with."""
        ...

    def replicas(self) -> frozenset[str]:
        """Whose engines run here, or are to."""
        ...

    def fail(self, replica: str, kind: Kind) -> None:
        """Let its engine fail so."""
        ...

    def heal(self, replica: str) -> None:
        """Let its engine be well."""
        ...

    def hangs(self, replica: str) -> bool:
        """Its engine still hangs."""
        ...

    def on_card(self, uuid: str, last_words: str) -> None:
        """The engine on this card ends."""
        ...

    async def boot(self, desired: Desired | None, boot_id: str | None) -> None:
        """Start what ran before, and obey."""
        ...

    async def lose_power(self) -> None:
        """All are gone."""
        ...

    async def close(self) -> None:
        """The fleet ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all nodes of a made-up fleet share."""

    url: str
    tls: ssl.SSLContext
    http: httpx2.AsyncClient
    """For probes of engines that are processes."""
    joining: asyncio.Semaphore
    """So many join at once."""
    engines: Callable[[Tools], Engines]
    luck: Callable[[], float] = field(default_factory=lambda: random.Random().random)  # noqa: S311 - spreads retries, hides nothing


def program(engine: Engine) -> tuple[str, ...]:
    """How a made-up node starts an engine: all the same one."""
    if engine is Engine.COMMAND:
        raise Unavailable("a made-up node runs no commands: give the profile another engine")
    return PROGRAM


class FakeNode:
    """Joins, reports what its fleet file says of it, obeys, and fails when it is told to."""

    def __init__(
        self, node: Node, world: World, *, directory: Path, token_file: Path, address: str
    ) -> None:
        self.node = node
        self.address = address
        self._world = world
        self._directory = Directory(directory)
        self._invitation = Invitation(name=node.name, token_file=token_file)
        self._changed = asyncio.Event()
        self._online = asyncio.Event()
        self._online.set()
        self._speaking: asyncio.Task[None] | None = None
        self._faults: list[Fault] = []
        # Wall time that never jumps.
        self._clock_offset = time.time() - time.monotonic()
        self._begin(procfs.boot_id())
        self._engines = world.engines(self._tools())

    def _begin(self, boot_id: str | None) -> None:
        """A new agent process, on the same directory."""
        self._boot_id = boot_id
        self._server = Server(
            self._world.url, boot_id=boot_id, speak_from=self.address, tls=self._world.tls
        )
        self._membership = Membership(
            self._server,
            self._directory,
            self._invitation,
            luck=self._world.luck,
            joined_again=self._changed.set,
        )
        self._obedience = Obedience(self._directory, lambda: self._membership.fleet)
        self._started_at = self._now()
        self._sequence = 0
        self._interval_s = 5.0
        self._membership.restore()
        self._obedience.restore()

    @property
    def name(self) -> str:
        """As the fleet file calls it."""
        return str(self.node.name)

    @property
    def live(self) -> tuple[ShardSpec, ...]:
        """What its engines that run were started with, whoever knows of them."""
        return self._engines.live()

    # -- its life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled; its engines end with it. Raises `Refused` if the first join is."""
        try:
            async with self._world.joining:
                await self._membership.begin()
            await self._engines.boot(self._obedience.desired, self._boot_id)
            while True:
                await self._online.wait()
                self._speaking = asyncio.create_task(self._speak())
                await asyncio.wait({self._speaking})
                if not self._speaking.cancelled():
                    self._speaking.result()
        finally:
            if self._speaking is not None:
                self._speaking.cancel()
            await self._engines.close()
            await self._server.close()

    async def _speak(self) -> None:
        orders = Orders(self._server, self._engines)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._for_ever(self._report))
                group.create_task(self._for_ever(self._obey))
                group.create_task(self._for_ever(lambda key: orders.take(key, wait=_POLL_S)))
        finally:
            await orders.close()

    async def _for_ever(self, step: Callable[[str], Awaitable[None]]) -> None:
        backoff = Backoff(self._world.luck)
        while True:
            credential = self._membership.credential
            try:
                if credential is not None:
                    await step(credential.credential)
            except (Refused, NotFound) as cause:
                self._say_once(backoff, cause)
                with contextlib.suppress(RoostError):
                    await self._membership.again(credential.credential if credential else "")
                await asyncio.sleep(backoff.next())
            except RoostError as cause:
                self._say_once(backoff, cause)
                await asyncio.sleep(backoff.next())
            else:
                backoff.worked()
                await asyncio.sleep(_SHORTEST_S)

    def _say_once(self, backoff: Backoff, cause: RoostError) -> None:
        if not backoff.failing:
            log.warning("fake_node.refused", node=self.name, cause=cause.message)

    async def _report(self, credential: str) -> None:
        self._changed.clear()
        self._sequence += 1
        report = wire.Report(
            identity=self._membership.identity,
            sequence=self._sequence,
            started_at=self._started_at,
            facts=self.facts,
            shards=self._engines.observed(),
            agent_version=self._membership.version,
            boot_id=self._boot_id,
            hostname=self.node.name,
            address=self.address,
            port_range=_PORTS,
        )
        answer = await self._server.report(credential, report)
        self._interval_s = answer.report_interval_s
        await first(self._changed.wait(), self._interval_s - _SHORTEST_S)

    async def _obey(self, credential: str) -> None:
        desired = await self._server.desired(credential, self._obedience.known, wait=_POLL_S)
        if desired is not None and self._obedience.accept(desired):
            self._interval_s = desired.report_interval_s
            self._engines.obey(desired)

    # -- faults ----------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """As reported now."""
        return facts_under(self.node.facts, self._faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those that stand; an engine that hung is well once it was started again."""
        self._faults = [
            fault
            for fault in self._faults
            if fault.kind is not Kind.HANG or self._engines.hangs(fault.replica or "")
        ]
        return tuple(self._faults)

    async def fail(self, asked: Fault) -> Fault:
        """Let it go wrong so; the fault, whole. Raises `Unusable` where it can't."""
        fault = checked(asked, self.node.facts, self._engines.replicas())
        if fault.kind is not Kind.CRASH and fault not in self._faults:
            self._faults.append(fault)
        if fault.kind in OF_AN_ENGINE:
            self._engines.fail(fault.replica or "", fault.kind)
        elif fault.kind is Kind.OFF_BUS:
            self._engines.on_card(self._uuid(fault), lost_card(fault.gpu or 0))
        elif fault.kind in {Kind.SILENT, Kind.OFF}:
            self._fall_silent()
        if fault.kind is Kind.OFF:
            await self._engines.lose_power()
        self._changed.set()
        return fault

    async def heal(
        self, kind: Kind | None, gpu: int | None, replica: str | None
    ) -> Sequence[Fault]:
        """End all faults that these words fit; which ones those were."""
        ended = [
            fault
            for fault in self.faults
            if kind in {None, fault.kind}
            and gpu in {None, fault.gpu}
            and replica in {None, fault.replica}
        ]
        self._faults = [fault for fault in self._faults if fault not in ended]
        for fault in ended:
            if fault.kind in OF_AN_ENGINE:
                self._engines.heal(fault.replica or "")
        if any(fault.kind is Kind.OFF for fault in ended):
            await self._server.close()
            self._begin(str(uuid.uuid4()))
            await self._engines.boot(self._obedience.desired, self._boot_id)
        if not any(fault.kind in {Kind.SILENT, Kind.OFF} for fault in self._faults):
            self._online.set()
        if any(fault.kind in OF_A_CARD for fault in ended):
            self._changed.set()
        return ended

    def _fall_silent(self) -> None:
        self._online.clear()
        if self._speaking is not None:
            self._speaking.cancel()

    def _uuid(self, fault: Fault) -> str:
        return next(
            (str(gpu.uuid) for gpu in self.node.facts.gpus or () if gpu.index == fault.gpu), ""
        )

    # -- what its engines work with --------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset

    def _tools(self) -> Tools:
        return Tools(
            agent=self._membership.identity,
            fleet=lambda: self._membership.fleet,
            shelf=Shelf(self._directory.shards),
            logs=self._directory.logs,
            model_directories=(_MODELS,),
            exists=lambda _: True,
            program=program,
            gone=lambda uuids: gone(self.facts.gpus, uuids),
            on_cards=_not_listed,
            http=self._world.http,
            now=self._now,
            luck=self._world.luck,
            changed=self._changed.set,
            threads=None,
            boot_id=self._boot_id,
            env=os.environ,
        )


async def _not_listed(_: Sequence[str]) -> None:
    """There is no driver to say who is on a card."""
