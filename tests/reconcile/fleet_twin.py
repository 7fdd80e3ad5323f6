"""A fleet as the scheduler sees it, which does at once what the scheduler's actions say."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from roost.domain.allocation import replica_name
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ReplicaState, ShardSpec
from roost.placement import plan
from roost.reconcile.actions import (
    Action,
    Adopt,
    Begin,
    Drain,
    Lose,
    Place,
    Release,
    Restart,
    Return,
    applied,
)
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.reconcile.schedule import Step, step
from roost.reconcile.world import Orphan, World

GB = 10**9


def profile(name: str = "gpu", *, gpus: int = 1, args: tuple[str, ...] = ()) -> Profile:
    if gpus:
        return Profile(
            name=ProfileName(name),
            engine=Engine.VLLM,
            source="model",
            gpu_class=GpuClass("h100"),
            gpus_per_node=gpus,
            tensor_parallel=gpus,
            args=args,
        )
    return Profile(
        name=ProfileName(name),
        engine=Engine.LLAMA_CPP,
        source="model",
        args=args,
        min_memory_bytes=8 * GB,
    )


def model(name: str = "m", replicas: int = 1, *profiles: Profile) -> Model:
    return Model(name=ModelName(name), replicas=replicas, profiles=profiles or (profile(),))


def node(name: str, gpus: int = 2) -> Node:
    return Node(
        name=NodeName(name),
        facts=Facts(
            memory_bytes=32 * GB,
            engines=frozenset({"vllm", "llama.cpp"}),
            gpus=tuple(
                Gpu(index=i, gpu_class=GpuClass("h100"), uuid=GpuUuid(f"{name}-{i}"))
                for i in range(gpus)
            ),
        ),
    )


@dataclass(kw_only=True)
class Twin:
    """The world between two steps."""

    nodes: dict[NodeName, Node] = field(default_factory=dict)
    models: dict[ModelName, Model] = field(default_factory=dict)
    replicas: dict[PlacementId, Replica] = field(default_factory=dict)
    orphans: dict[PlacementId, Orphan] = field(default_factory=dict)
    lost: set[NodeName] = field(default_factory=set)
    gone: dict[PlacementId, frozenset[int]] = field(default_factory=dict)
    settled: bool = True
    clock: float = 0
    story: list[str] = field(default_factory=list)
    check: Callable[["Twin"], None] = lambda _: None

    @classmethod
    def of(cls, nodes: Iterable[Node], models: Iterable[Model] = ()) -> "Twin":
        return cls(nodes={n.name: n for n in nodes}, models={m.name: m for m in models})

    def want(self, wanted: Model) -> None:
        self.models[wanted.name] = wanted

    def world(self) -> World:
        return World(
            catalog=Catalog(models=tuple(self.models.values())),
            nodes=tuple(
                replace(one, ready=name not in self.lost) for name, one in self.nodes.items()
            ),
            replicas=tuple(self.replicas.values()),
            orphans=tuple(self.orphans.values()),
            lost=dict.fromkeys(self.lost, 61.0),
            back=frozenset(self.nodes.keys() - self.lost),
            gone=dict(self.gone),
            settled=self.settled,
            now=self.clock,
        )

    def step(self) -> Step:
        self.clock += 1
        done = step(self.world(), plan)
        for action in done.actions:
            self.story.append(f"{type(action).__name__} {action.because}")
            self._perform(action)
        self.check(self)
        return done

    def settle(self, *, serve: bool = True) -> None:
        """Step until nothing is left to do; engines become ready and stopped ones exit meanwhile."""
        for _ in range(60):
            acted = bool(self.step().actions)
            moved = serve and self.serve()
            if not acted and not moved:
                return
        raise AssertionError("never settles:\n" + "\n".join(self.story[-12:]))

    def serve(self) -> bool:
        """Every node that isn't lost does what it was told; whether anything moved."""
        moved = False
        for placement, replica in self.replicas.items():
            if replica.wish is Wish.STOP:
                moved |= self.end(replica)
            elif set(replica.nodes) & self.lost:
                continue
            elif replica.state is not ReplicaState.READY:
                moved = True
                self.become(placement, ReplicaState.READY)
        return moved

    def end(self, replica: Replica) -> bool:
        """Every shard that is told to, and whose node isn't lost, ends; whether one did."""
        told = {
            shard.rank
            for shard in replica.shards
            if replica.is_told_to_stop(shard) and shard.node not in self.lost
        }
        before = self.gone.get(replica.placement, frozenset())
        if told <= before:
            return False
        self.gone[replica.placement] = before | told
        return True

    def become(self, placement: PlacementId, state: ReplicaState) -> None:
        self.replicas[placement] = replace(self.replicas[placement], state=state)

    def _perform(self, action: Action) -> None:
        match action:
            case Place():
                placement = PlacementId(f"p{len(self.story)}")
                self.replicas[placement] = Replica(
                    placement=placement,
                    name=replica_name(action.model, action.index),
                    model=action.model,
                    index=action.index,
                    profile=action.profile,
                    created_at=self.clock,
                    since=self.clock,
                    shards=tuple(
                        Shard(
                            rank=shard.rank,
                            node=shard.node,
                            host="127.0.0.1",
                            port=20000,
                            key="k",
                            gpus=shard.gpus,
                            gpu_uuids=shard.gpu_uuids,
                            memory_bytes=action.profile.min_memory_bytes,
                        )
                        for shard in action.decision.shards
                    ),
                )
            case Adopt():
                self.replicas[action.orphan.placement] = adopted(action, self.clock)
                del self.orphans[action.orphan.placement]
            case Drain() | Lose() | Return() | Restart() | Begin():
                replica = self.replicas[action.placement]
                self.replicas[action.placement] = applied(action, replica, now=self.clock)
            case Release(placement=placement, ranks=ranks):
                replica = self.replicas.pop(placement)
                self.gone.pop(placement)
                left = tuple(shard for shard in replica.shards if shard.rank not in ranks)
                if left:
                    self.replicas[placement] = replace(replica, shards=left)
            case _:
                assert_never(action)

    def running(self, name: str = "m") -> list[Replica]:
        return sorted(
            (r for r in self.replicas.values() if r.model == name and r.wish is Wish.RUN),
            key=lambda r: (r.index, r.created_at),
        )

    def where(self, name: str = "m") -> list[str]:
        return [f"{r.name} {r.wish.value} {r.nodes[0]}" for r in self.running(name)]


def adopted(action: Adopt, now: float) -> Replica:
    spec = action.orphan.spec
    return Replica(
        placement=action.orphan.placement,
        name=spec.replica,
        model=action.model,
        index=action.index,
        profile=spec.profile,
        created_at=now,
        since=now,
        state=ReplicaState.READY,
        shards=tuple(
            Shard(
                rank=rank,
                node=where,
                host=part.host,
                port=part.port,
                key=part.key,
                gpus=part.gpus,
                gpu_uuids=tuple(GpuUuid(uuid) for uuid in part.gpu_uuids),
            )
            for rank, (where, part) in sorted(action.orphan.shards.items())
        ),
    )


def orphan(
    name: str,
    where: str,
    *,
    index: int = 0,
    of: Profile | None = None,
    gpus: tuple[int, ...] = (0,),
) -> Orphan:
    placement = PlacementId(f"old-{name}-{index}")
    spec = ShardSpec(
        placement=placement,
        rank=0,
        replica=replica_name(ModelName(name), index),
        model=ModelName(name),
        index=index,
        profile=of or profile(),
        host="127.0.0.1",
        port=20001,
        key="old",
        gpus=gpus,
        gpu_uuids=tuple(f"{where}-{i}" for i in gpus),
    )
    return Orphan(placement=placement, shards={0: (NodeName(where), spec)})
