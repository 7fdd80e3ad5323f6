from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reconcile.fleet_twin import Twin, model, node, orphan, profile
from roost.domain.node import NodeName
from roost.domain.profile import Profile
from roost.domain.replica import ReplicaState
from roost.reconcile.replicas import Wish

NODES = st.sampled_from([NodeName("a"), NodeName("b"), NodeName("c")])
MODELS = st.sampled_from(["m", "n"])
PROFILES = st.sampled_from(
    [profile(), profile(gpus=2), profile(args=("--x",)), profile("cpu", gpus=0)]
)
THEN = st.sampled_from(["settle", "step", "step", "nothing"])
STATES = st.sampled_from(
    [ReplicaState.READY, ReplicaState.LOADING, ReplicaState.STARTING, ReplicaState.FAILED]
)


class Scheduling(RuleBasedStateMachine):
    """Anything may happen between two steps."""

    @initialize(sizes=st.lists(st.sampled_from([1, 2, 0]), min_size=3, max_size=3))
    def fleet(self, sizes: list[int]) -> None:
        self.twin = Twin.of(node(name, size) for name, size in zip("abc", sizes, strict=True))

    @rule(
        name=MODELS,
        replicas=st.integers(0, 3),
        profiles=st.lists(PROFILES, min_size=1, max_size=2, unique_by=lambda p: p.name),
        then=THEN,
    )
    def apply(self, name: str, replicas: int, profiles: list[Profile], then: str) -> None:
        self.twin.want(model(name, replicas, *profiles))
        self.then(then)

    @rule(name=MODELS, then=THEN)
    def delete(self, name: str, then: str) -> None:
        self.twin.models = {n: m for n, m in self.twin.models.items() if n != name}
        self.then(then)

    @rule(name=NODES, then=THEN)
    def lose(self, name: NodeName, then: str) -> None:
        self.twin.lost.add(name)
        self.then(then)

    @rule(then=THEN)
    def come_back(self, then: str) -> None:
        self.twin.lost.clear()
        self.then(then)

    @rule(name=NODES, cordoned=st.booleans(), draining=st.booleans(), then=THEN)
    def cordon(self, name: NodeName, cordoned: bool, draining: bool, then: str) -> None:
        one = self.twin.nodes[name]
        self.twin.nodes[name] = replace(one, cordoned=cordoned or draining, draining=draining)
        self.then(then)

    @rule(data=st.data(), state=STATES, then=THEN)
    def report(self, data: st.DataObject, state: ReplicaState, then: str) -> None:
        here = [
            p
            for p, r in self.twin.replicas.items()
            if r.wish is not Wish.STOP and not set(r.nodes) & self.twin.lost
        ]
        if here:
            self.twin.become(data.draw(st.sampled_from(sorted(here))), state)
        self.then(then)

    @rule()
    def exits(self) -> None:
        for replica in self.twin.replicas.values():
            if replica.wish is Wish.STOP:
                self.twin.end(replica)

    @rule(name=NODES, index=st.integers(0, 1), then=THEN)
    def stranger(self, name: NodeName, index: int, then: str) -> None:
        held: set[str] = {
            gpu for r in self.twin.replicas.values() for s in r.shards for gpu in s.gpu_uuids
        }
        held |= {gpu for o in self.twin.orphans.values() for gpu in o.spec.gpu_uuids}
        found = orphan("m", name, index=index)
        free = not set(found.spec.gpu_uuids) & held and bool(self.twin.nodes[name].facts.gpus)
        if free and found.placement not in self.twin.replicas:
            self.twin.orphans[found.placement] = found
        self.then(then)

    def then(self, what: str) -> None:
        if what == "step":
            self.step()
        elif what == "settle":
            self.settle()

    def step(self) -> None:
        before = dict(self.twin.replicas)
        gone = set(self.twin.gone)
        done = self.twin.step()
        assert all(action.because for action in done.actions)
        for placement in before.keys() - self.twin.replicas.keys():
            assert before[placement].wish is Wish.STOP
            assert placement in gone, "released before its agent had said so"

    def settle(self) -> None:
        self.twin.settle()
        done = self.twin.step()
        assert not done.actions, "a plan of its own result is empty"
        for wanted in self.twin.models.values():
            running = self.twin.running(wanted.name)
            indices = {replica.index for replica in running}
            assert len(running) == len(indices) <= wanted.replicas
            missing = wanted.replicas - len(running)
            explained = [one for one in done.waiting if one.decision.model == wanted.name]
            assert len(explained) == missing, "every gap is explained"
            for replica in self.twin.replicas.values():
                if replica.model == wanted.name and replica.wish is Wish.LOST:
                    assert missing or replica.index in indices
                    assert set(replica.nodes) & self.twin.lost
        assert {r.model for r in self.twin.replicas.values() if r.wish is not Wish.STOP} <= set(
            self.twin.models
        )

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        if not hasattr(self, "twin"):
            return
        held: list[tuple[str, str]] = [
            (shard.node, gpu)
            for replica in self.twin.replicas.values()
            for shard in replica.shards
            for gpu in shard.gpu_uuids
        ]
        held += [
            (where, gpu) for o in self.twin.orphans.values() for where, s in o.shards.values()
            for gpu in s.gpu_uuids
        ]  # fmt: skip
        assert len(set(held)) == len(held), held


Scheduling.TestCase.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
TestScheduling = Scheduling.TestCase
