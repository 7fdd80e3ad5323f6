"""A replica on several nodes: the server's view of it, and each agent's engine, with made-up time."""

from dataclasses import dataclass, field, replace

from reconcile.engine_twin import World
from roost.domain.allocation import ReplicaName
from roost.domain.gpu import GpuClass
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import ObservedShard, PlacementId, ReplicaState
from roost.reconcile import groups
from roost.reconcile.actions import Begin, Restart, applied
from roost.reconcile.engine_life import (
    NOTHING_LEFT,
    Action,
    Ended,
    GroupStart,
    Health,
    Phase,
    Start,
    cause_of,
    first_life,
    state_of,
)
from roost.reconcile.replicas import Replica, Shard, Wish, observe
from roost.reconcile.supervise import failed, hurried

PLACEMENT = PlacementId("p-1")


def group_profile(nodes: int = 2) -> Profile:
    return Profile(
        name=ProfileName("wide"),
        engine=Engine.VLLM,
        source="model",
        gpu_class=GpuClass("h100"),
        gpus_per_node=1,
        nodes=nodes,
        tensor_parallel=nodes,
    )


def group(nodes: int = 2, **more: object) -> Replica:
    made = Replica(
        placement=PLACEMENT,
        name=ReplicaName("m-0"),
        model=ModelName("m"),
        index=0,
        profile=group_profile(nodes),
        created_at=0,
        since=0,
        shards=tuple(
            Shard(rank=rank, node=NodeName("abcdefgh"[rank]), host="127.0.0.1", port=20000, key="k")
            for rank in range(nodes)
        ),
    )
    return replace(made, **more)  # type: ignore[arg-type]  # by name


def observed(rank: int, state: ReplicaState, generation: int = 0, **more: object) -> ObservedShard:
    one = ObservedShard(
        placement=PLACEMENT,
        rank=rank,
        replica=ReplicaName("m-0"),
        state=state,
        since=0,
        port=20000,
        generation=generation,
    )
    return replace(one, **more)  # type: ignore[arg-type]  # by name


@dataclass
class Agent(World):
    """One rank's engine; remembers which start of the group its processes are of."""

    of: int = -1
    """The start of the group that its processes belong to."""
    begun: list[int] = field(default_factory=list)
    """The start of the group, of each start of its own."""

    def _do(self, action: Action) -> None:
        super()._do(action)
        if isinstance(action, Start):
            assert self.life.generation is not None
            self.of = self.life.generation
            self.begun.append(self.of)

    @property
    def lives(self) -> bool:
        return self.running or self.others > 0

    def reboot(self, *, machine: bool) -> None:
        """The agent's process, and with `machine` all others, start anew: by what is kept on disk."""
        was = self.life
        if machine:
            self.running, self.others = False, 0
            self.left = NOTHING_LEFT
        kept = replace(
            first_life(self.start, now=self.now),
            starts=was.starts,
            restarts=was.restarts,
            failures=was.failures,
            cause=was.cause,
            holds=was.phase is not Phase.WAITING,
            generation=was.generation,
        )
        if was.phase is Phase.WAITING:
            self.life = replace(kept, due=was.due)
        elif not self.running:
            ended = Ended(cause="the machine was restarted")
            self.life = hurried(failed(kept, ended, now=self.now, luck=0), now=self.now)
        else:
            ready = was.ready_since is not None
            self.life = replace(
                kept,
                phase=Phase.READY if ready else Phase.STARTING,
                ready_since=was.ready_since,
                progress_at=self.now,
                heard_at=self.now,
            )

    def report(self, rank: int) -> ObservedShard:
        return observed(
            rank,
            state_of(self.life),
            self.life.generation or 0,
            pid=1000 + len(self.begun) if self.running else None,
            cause=cause_of(self.life),
            restarts=self.life.restarts,
        )


class Group:
    """The replica, its agents, and what goes between them, one message at a time."""

    def __init__(self, nodes: int = 2) -> None:
        self.replica = group(nodes)
        self.agents = [
            Agent(life=first_life(GroupStart(generation=0), now=0)) for _ in range(nodes)
        ]
        self.now = 1000.0
        self.back: set[NodeName] = set(self.replica.nodes)
        self.story: list[str] = []

    def tell(self, rank: int) -> None:
        agent, replica = self.agents[rank], self.replica
        agent.start = GroupStart(generation=replica.generation, hold=replica.hold)
        agent.wanted = replica.wish is not Wish.STOP

    def report(self, rank: int) -> None:
        self.back.add(self.replica.nodes[rank])
        seen = {rank: self.agents[rank].report(rank)}
        self.replica = observe(self.replica, seen, now=self.now)

    def decide(self) -> Restart | Begin | None:
        action = groups.regroup(self.replica, back=self.back, now=self.now, luck=0.0)
        if action is not None:
            self.story.append(f"{type(action).__name__} {action.generation}: {action.because}")
            self.replica = applied(action, self.replica, now=self.now)
        return action

    def look(self, rank: int) -> None:
        agent = self.agents[rank]
        agent.now = self.now
        if agent.start is None:
            return  # it was told of nothing yet
        before = len(agent.begun)
        agent.look()
        for generation in agent.begun[before:]:
            self.check_start(rank, generation)

    def check_start(self, rank: int, generation: int) -> None:
        """What must hold whenever a rank is started."""
        mine = self.agents[rank].begun
        assert mine.count(generation) == 1, f"rank {rank} was started twice in start {generation}"
        assert mine == sorted(mine), f"rank {rank} went back to an earlier start: {mine}"
        for other, agent in enumerate(self.agents):
            if other != rank and agent.lives:
                assert agent.of >= generation, (
                    f"rank {rank} began start {generation} while rank {other} was still up in "
                    f"{agent.of}"
                )

    def turn(self) -> bool:
        """Everybody is told, looks and reports, and the server decides; whether it did anything."""
        for rank, agent in enumerate(self.agents):
            self.tell(rank)
            self.look(rank)
            if agent.running and agent.health is not Health.READY:
                agent.health = Health.READY
                self.look(rank)
            self.report(rank)
        return self.decide() is not None

    def settle(self, seconds: float = 400.0) -> None:
        """Nothing breaks any more."""
        end = self.now + seconds
        while self.now < end:
            self.turn()
            self.now += 0.5 if self.now < end - seconds + 60 else 5.0

    @property
    def is_whole(self) -> bool:
        """Every rank is up and ready in one start, and the server knows it."""
        starts = {agent.of for agent in self.agents}
        return (
            self.replica.is_ready
            and starts == {self.replica.generation}
            and all(agent.life.phase is Phase.READY for agent in self.agents)
        )
