from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reconcile.fleet_twin import Twin, model, node, orphan, profile
from roost.domain.model import Model
from roost.domain.node import NodeName
from roost.domain.replica import ReplicaState
from roost.reconcile.replicas import Wish

NODES = st.sampled_from([NodeName("a"), NodeName("b"), NodeName("c")])
MODELS = st.sampled_from(["m", "n"])
PROFILES = st.sampled_from(
    [profile(), profile(gpus=2), profile(args=("--x",)), profile("cpu", gpus=0)]
)
STATES = st.sampled_from(
    [ReplicaState.READY, ReplicaState.LOADING, ReplicaState.STARTING, ReplicaState.FAILED]
)


class Scheduling(RuleBasedStateMachine):
    """Anything may happen between two steps."""

    @initialize(sizes=st.lists(st.sampled_from([1, 2, 0]), min_size=3, max_size=3))
    def fleet(self, sizes: list[int]) -> None:
        self.twin = Twin.of(node(name, size) for name, size in zip("abc", sizes, strict=True))

    @rule(name=MODELS, replicas=st.integers(0, 3), profiles=st.lists(PROFILES, min_size=1, max_size=2,
          unique_by=lambda p: p.name))  # fmt: skip
    def apply(self, name: str, replicas: int, profiles: list) -> None:  # type: ignore[type-arg]
        self.twin.want(model(name, replicas, *profiles))

    @rule(name=MODELS)
    def delete(self, name: str) -> None:
        self.twin.models = {n: m for n, m in self.twin.models.items() if n != name}

    @rule(name=NODES)
    def lose(self, name: NodeName) -> None:
        self.twin.lost.add(name)

    @rule(name=NODES)
    def come_back(self, name: NodeName) -> None:
        self.twin.lost.discard(name)

    @rule(name=NODES, cordoned=st.booleans(), draining=st.booleans())
    def cordon(self, name: NodeName, cordoned: bool, draining: bool) -> None:
        one = self.twin.nodes[name]
        self.twin.nodes[name] = replace(one, cordoned=cordoned or draining, draining=draining)

    @rule(data=st.data(), state=STATES)
    def report(self, data: st.DataObject, state: ReplicaState) -> None:
        here = [
            p
            for p, r in self.twin.replicas.items()
            if r.wish is not Wish.STOP and not set(r.nodes) & self.twin.lost
        ]
        if here:
            self.twin.become(data.draw(st.sampled_from(sorted(here))), state)

    @rule()
    def exits(self) -> None:
        self.twin.gone.update(
            p
            for p, r in self.twin.replicas.items()
            if r.wish is Wish.STOP and not set(r.nodes) & self.twin.lost
        )

    @rule(name=NODES, index=st.integers(0, 1))
    def stranger(self, name: NodeName, index: int) -> None:
        held: set[str] = {
            gpu for r in self.twin.replicas.values() for s in r.shards for gpu in s.gpu_uuids
        }
        held |= {gpu for o in self.twin.orphans.values() for gpu in o.spec.gpu_uuids}
        found = orphan("m", name, index=index)
        free = not set(found.spec.gpu_uuids) & held and bool(self.twin.nodes[name].facts.gpus)
        if free and found.placement not in self.twin.replicas:
            self.twin.orphans[found.placement] = found

    @rule()
    def step(self) -> None:
        before = dict(self.twin.replicas)
        done = self.twin.step()
        assert all(action.because for action in done.actions)
        released = before.keys() - self.twin.replicas.keys()
        assert all(before[placement].wish is Wish.STOP for placement in released)

    @rule()
    def settle(self) -> None:
        self.twin.settle()
        again = self.twin.step()
        assert not again.actions, "a plan of its own result is empty"
        for wanted in self.twin.models.values():
            self._as_wanted(wanted)

    def _as_wanted(self, wanted: Model) -> None:
        running = self.twin.running(wanted.name)
        assert len(running) <= wanted.replicas
        assert len({r.index for r in running}) == len(running)
        waiting = self.twin.step().waiting
        missing = wanted.replicas - len(running)
        assert missing == sum(d.model == wanted.name for d in waiting), "every gap is explained"

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


Scheduling.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=False
)
TestScheduling = Scheduling.TestCase
