"""The server's services on a real database and a clock of its own, and agents that speak the wire."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.node import Facts, Filesystem, NodeName
from roost.domain.replica import Desired, Load, ObservedShard, ReplicaState, ShardSpec
from roost.formats import agent_wire as wire
from roost.formats.agent_wire import Join, Report
from roost.placement import plan
from roost.services.server import Server, open_server

GB = 10**9

CATALOG = """
models:
- name: coder
  replicas: {replicas}
  profiles:
  - {{name: gpu, engine: vllm, source: model, gpu_class: h100, args: {args}}}
"""


def catalog(replicas: int = 1, args: str = "[]") -> str:
    return CATALOG.format(replicas=replicas, args=args)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def facts(name: str, gpus: int = 1) -> Facts:
    return Facts(
        memory_bytes=64 * GB,
        engines=frozenset({"vllm"}),
        gpus=tuple(
            Gpu(index=i, gpu_class=GpuClass("h100"), uuid=GpuUuid(f"{name}-{i}"))
            for i in range(gpus)
        ),
        fabrics=(FabricAttachment(name=FabricName("ib0"), hcas=(HcaName("mlx5_0"),)),),
        storage=(Filesystem(filesystem="/dev/a", mounts=("/",), free_bytes=100 * GB),),
    )


@dataclass(kw_only=True)
class FakeAgent:
    """Obeys its desired state and reports what it did; engines are entries in a table."""

    fleet: "SmallFleet"
    name: str
    facts: Facts
    identity: str = ""
    credential: str = ""
    sequence: int = 0
    started_at: float = 0
    desired: Desired | None = None
    engines: dict[str, ObservedShard] = field(default_factory=dict)
    specs: dict[str, ShardSpec] = field(default_factory=dict)
    becomes: ReplicaState = ReplicaState.READY
    ports_taken: tuple[int, ...] = ()

    async def join(self) -> None:
        server = self.fleet.server
        _, token = await server.joining.create_token(ttl_s=60, uses=1, who="test")
        joined = await server.joining.join(
            Join(token=token, name=self.name, identity=self.identity or f"identity-{self.name}")
        )
        self.credential = joined.credential

    async def fetch(self) -> None:
        had = self.desired
        told = await self.fleet.server.desired.fetch(
            NodeName(self.name),
            revision=had.revision if had else 0,
            incarnation=had.incarnation if had else 0,
            epoch=had.epoch if had else 0,
            wait_s=0,
        )
        if told is not None:
            self.desired = wire.decode_desired(wire.encode(told))

    def obey(self) -> None:
        if self.desired is None:
            return
        for spec in self.desired.run:
            known = self.engines.get(spec.placement)
            if known is None or _is_to_start(known, spec):
                self.specs[spec.placement] = spec
                self.engines[spec.placement] = ObservedShard(
                    placement=spec.placement,
                    rank=spec.rank,
                    replica=spec.replica,
                    state=ReplicaState.PLACED if spec.hold else self.becomes,
                    since=self.fleet.clock.time(),
                    pid=None if spec.hold else 100,
                    port=spec.port,
                    generation=spec.generation,
                    load=Load(running=0, waiting=0),
                )
        for placement in self.desired.stop:
            self.engines.pop(placement, None)

    def become(self, state: ReplicaState, **more: object) -> None:
        self.becomes = state
        self.engines = {
            p: replace(e, state=state, **more)  # type: ignore[arg-type]  # by name
            for p, e in self.engines.items()
        }

    def report(self) -> None:
        self.sequence += 1
        told = {spec.placement for spec in self.desired.run} if self.desired else set()
        shards = tuple(
            engine if placement in told else replace(engine, spec=self.specs[placement])
            for placement, engine in self.engines.items()
        )
        report = Report(
            identity=self.identity or f"identity-{self.name}",
            sequence=self.sequence,
            started_at=self.started_at,
            facts=self.facts,
            shards=shards,
            address="127.0.0.1",
            port_range=(21000, 21100),
            ports_taken=self.ports_taken,
        )
        self.fleet.server.reports.take(
            NodeName(self.name), wire.decode_report(wire.encode(report)), peer="127.0.0.1"
        )

    async def turn(self) -> None:
        await self.fetch()
        self.obey()
        self.report()


def _is_to_start(known: ObservedShard, spec: ShardSpec) -> bool:
    """At once: the engines of a table take no time to end."""
    waits = known.state is ReplicaState.PLACED and not spec.hold
    return (known.port, known.generation) != (spec.port, spec.generation) or waits


@dataclass
class SmallFleet:
    directory: Path
    clock: FakeClock
    agents: dict[str, FakeAgent] = field(default_factory=dict)
    database: str | None = None
    patience_s: float = 60
    _server: Server | None = None

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    async def open(self) -> None:
        self._server = await open_server(
            self.directory,
            plan=plan,
            clock=self.clock,
            database=self.database,
            patience_s=self.patience_s,
        )

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def join(self, name: str, gpus: int = 1) -> FakeAgent:
        agent = FakeAgent(fleet=self, name=name, facts=facts(name, gpus))
        self.agents[name] = agent
        await agent.join()
        agent.report()
        return agent

    async def apply(self, text: str) -> None:
        await self.server.operations.apply(text, filename="c.yaml", who="test")

    async def steps(self) -> None:
        for _ in range(30):
            if not await self.server.scheduler.step():
                return
        raise AssertionError("the scheduler never comes to rest")

    async def turn(self, *silent: str) -> None:
        """Five seconds in which everybody but the silent does what it is told."""
        await self.steps()
        self.clock.advance(5)
        self.server.inventory.tick()
        for name, agent in self.agents.items():
            if name not in silent:
                await agent.turn()
        self.server.inventory.tick()
        await self.steps()

    async def rest(self, *silent: str, turns: int = 6) -> None:
        for _ in range(turns):
            await self.turn(*silent)

    def rows(self) -> list[tuple[str, str, str | None]]:
        return [
            (row["replica"], row["state"], row["shards"][0]["node"] if row["shards"] else None)
            for row in self.server.views.replicas()
        ]

    def routes(self) -> list[str]:
        self.server.routing.refresh()
        return [
            route.placement
            for model in self.server.routing.snapshot().models
            for route in model.routes
        ]
