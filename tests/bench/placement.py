"""How fast placement is: placements a second, events, a whole re-plan, explanations, memory.

    python tests/bench/placement.py [--quick] [--nodes N ...]

Prints JSON. Times are CPU time of this thread, so that a busy machine falsifies less; they still
depend on the machine, so every figure stands beside that of a scan over all nodes in the same run.
"""

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from roost.domain.allocation import Allocation
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.units import GB
from roost.garbage import uncollected
from roost.placement import filters, plan
from roost.placement.decide import Ask, Placed, decide
from roost.placement.decision import Decision, Outcome
from roost.placement.index import Index
from roost.placement.view import View
from roost.testing.naive_placement import World, naive_decide

SEED = 20
FILL = 0.85
H100, A100, L40S = GpuClass("h100-80gb-hbm3"), GpuClass("a100-sxm4-80gb"), GpuClass("l40s")
POOLS = ("code", "chat", "batch", "lab")
clock = time.thread_time_ns


def fleet_of(size: int, rng: random.Random) -> tuple[Node, ...]:
    """Nodes of 8 GPUs: three classes, faults, foreign processes, split NVLink, 8 fabrics."""
    return tuple(_node(number, rng) for number in range(size))


def _node(number: int, rng: random.Random) -> Node:
    gpu_class = rng.choices((H100, A100, L40S), (6, 3, 1))[0]
    domains = rng.choices(
        ((0,) * 8, (0,) * 4 + (1,) * 4, tuple(range(8)), (None,) * 8), (6, 2, 1, 1)
    )[0]
    broken = rng.randrange(8) if rng.random() < 0.04 else None
    foreign = rng.randrange(8) if rng.random() < 0.03 else None
    gpus = tuple(
        Gpu(
            index=at,
            gpu_class=gpu_class,
            uuid=GpuUuid(f"GPU-{number}-{at}"),
            memory_bytes=(48 if gpu_class == L40S else 80) * GB,
            nvlink_domain=domains[at],
            healthy=at != broken,
            unhealthy_reason="3 uncorrectable ECC errors" if at == broken else None,
            foreign_processes=int(at == foreign),
        )
        for at in range(8)
    )
    memory = rng.choice((256, 512, 1024, 2048)) * GB - rng.randrange(2 * GB)
    fabric = FabricAttachment(
        name=FabricName(f"ib{number % 8}"), hcas=tuple(HcaName(f"mlx5_{at}") for at in range(4))
    )
    disk = rng.choice((1000, 2000, 4000)) * GB
    return Node(
        name=NodeName(f"node-{number:05d}"),
        ready=rng.random() >= 0.01,
        cordoned=rng.random() < 0.01,
        facts=Facts(
            labels={"pool": rng.choice(POOLS), "rack": str(number // 16)},
            memory_bytes=memory,
            engines=frozenset({"vllm", "sglang", "llama.cpp"} if rng.random() < 0.9 else {"vllm"}),
            gpus=gpus,
            fabrics=(fabric,) if rng.random() < 0.8 else (),
            storage=(
                Filesystem(
                    filesystem="/dev/nvme0n1p2",
                    mounts=("/",),
                    free_bytes=disk - rng.randrange(200 * GB),
                    total_bytes=disk,
                ),
            ),
        ),
    )


def catalog_of(replicas: int, rng: random.Random) -> Catalog:
    """56 models with 64 profiles of 1, 2, 4, 8, 2×8 and 4×8 GPUs, and none."""
    shapes = ((1, 1), (1, 1), (2, 1), (2, 1), (4, 1), (4, 1), (8, 1), (8, 2), (8, 4), (0, 1))
    weights = (20, 20, 12, 12, 8, 8, 3, 1, 0.5, 6)
    models = []
    for number in range(56):
        count = 2 if number % 7 == 0 else 1
        # Every shape is there; how often each is wanted is in the replicas.
        shape = number % len(shapes)
        models.append(
            Model(
                name=ModelName(f"model-{number:02d}"),
                replicas=max(1, round(replicas * weights[shape] / sum(weights) / 5.6)),
                profiles=tuple(_profile(f"p{at}", shapes[shape], rng, at) for at in range(count)),
            )
        )
    return Catalog(models=tuple(models))


def _profile(name: str, shape: tuple[int, int], rng: random.Random, at: int) -> Profile:
    gpus, nodes = shape
    gpu_class = rng.choices((H100, A100, L40S), (6, 3, 1))[0] if gpus else None
    return Profile(
        name=ProfileName(name),
        engine=rng.choice((Engine.VLLM, Engine.SGLANG)) if gpus else Engine.LLAMA_CPP,
        source="hf:some/model",
        priority=10 - at,
        gpu_class=gpu_class,
        gpus_per_node=gpus,
        nodes=nodes,
        tensor_parallel=max(1, gpus),
        pipeline_parallel=nodes,
        node_selector={"pool": rng.choice(POOLS)} if rng.random() < 0.3 else {},
        min_memory_bytes=rng.choice((8, 16, 32, 64)) * GB if rng.random() < 0.5 else None,
        min_disk_bytes=rng.choice((20, 40, 100)) * GB if rng.random() < 0.3 else None,
        min_gpu_memory_bytes=40 * GB if gpus and rng.random() < 0.2 else None,
    )


class Churn:
    """A fleet that is kept at a share of its GPUs, asks coming and replicas going at random."""

    def __init__(self, size: int) -> None:
        self.rng = random.Random(SEED)
        self.nodes = fleet_of(size, self.rng)
        self.catalog = catalog_of(size * 2, self.rng)
        self.index = Index(self.catalog, Fleet(nodes=self.nodes))
        self.models = self.catalog.models
        self.weights = [model.replicas for model in self.models]
        self.running: list[tuple[Allocation, ...]] = []
        self.used = 0
        self.room = round(size * 8 * FILL)
        self.next = 0
        # CPU replicas need no GPU: they are kept to a number instead.
        while self.used < self.room:
            answer = decide(self.ask(), self.index.view)
            if isinstance(answer, Placed):
                self.hold(answer.allocations)
            elif self.next > size * 40:
                break
            self.trim()

    def ask(self) -> Ask:
        self.next += 1
        return Ask(self.rng.choices(self.models, self.weights)[0], self.next)

    def hold(self, holds: tuple[Allocation, ...]) -> None:
        for hold in holds:
            self.index.allocate(hold)
            self.used += len(hold.gpus)
        self.running.append(holds)

    def trim(self) -> None:
        while self.used > self.room or len(self.running) > len(self.nodes) * 4:
            at = self.rng.randrange(len(self.running))
            self.running[at], self.running[-1] = self.running[-1], self.running[at]
            for hold in self.running.pop():
                self.index.release(hold)
                self.used -= len(hold.gpus)


def placements(churn: Churn, count: int) -> dict[str, Any]:
    """Decide with the counts of every refusal, and hold; releases in between are not counted."""
    decided, whole, outcomes = [], [], dict.fromkeys(Outcome, 0)
    gc.collect()
    for _ in range(count):
        ask = churn.ask()
        start = clock()
        answer = decide(ask, churn.index.view)
        for tried in answer.tried:
            tried.counts  # noqa: B018 - reading it is what is measured
        then = clock()
        if isinstance(answer, Placed):
            churn.hold(answer.allocations)
        end = clock()
        decided.append(then - start)
        whole.append(end - start)
        outcomes[answer.outcome] += 1
        churn.trim()
    return {
        "placed": outcomes[Outcome.PLACED],
        "refused": outcomes[Outcome.UNPLACEABLE],
        "decide": told(decided),
        "decide_and_hold": told(whole),
        "per_s": round(1e9 / statistics.fmean(whole)),
    }


def told(times: list[int]) -> dict[str, float]:
    """Microseconds."""
    ordered = sorted(times)
    return {
        "mean_us": round(statistics.fmean(times) / 1e3, 1),
        "p50_us": round(ordered[len(ordered) // 2] / 1e3, 1),
        "p99_us": round(ordered[int(len(ordered) * 0.99)] / 1e3, 1),
    }


def events(churn: Churn, count: int) -> dict[str, Any]:
    """What one event costs, by kind."""
    index, rng = churn.index, churn.rng
    view = index.view

    def some() -> Node:
        return view.row(rng.randrange(view.size)).node

    def ready(node: Node) -> Node:
        return replace(node, ready=not node.ready)

    def cordon(node: Node) -> Node:
        return replace(node, cordoned=not node.cordoned)

    def health(node: Node) -> Node:
        first, *others = node.facts.gpus or ()
        healthy = not first.healthy
        gpus = (replace(first, healthy=healthy), *others)
        return replace(node, facts=replace(node.facts, gpus=gpus))

    def labels(node: Node) -> Node:
        carried = {**node.facts.labels, "pool": rng.choice(POOLS)}
        return replace(node, facts=replace(node.facts, labels=carried))

    def free_disk(node: Node) -> Node:
        (disk,) = node.facts.storage or ()
        less = replace(disk, free_bytes=(disk.free_bytes or 0) - rng.randrange(GB))
        return replace(node, facts=replace(node.facts, storage=(less,)))

    found: dict[str, Any] = {}
    kinds: tuple[Callable[[Node], Node], ...] = (ready, cordon, health, labels, free_disk)
    for kind in kinds:
        times = []
        for _ in range(count):
            node = some()
            changed = kind(node)
            start = clock()
            index.observe(changed)
            end = clock()
            index.observe(node)
            times.append(end - start)
        found[kind.__name__] = told(times)
    allocate, release = [], []
    for _ in range(count):
        (hold, *_) = rng.choice(churn.running)
        start = clock()
        index.release(hold)
        then = clock()
        index.allocate(hold)
        end = clock()
        release.append(then - start)
        allocate.append(end - then)
    return {**found, "allocate": told(allocate), "release": told(release)}


def scans(churn: Churn, seconds: float) -> dict[str, Any]:
    """The same filters over every node, a sentence for each reason: what the sets are there for."""
    view, count, start = churn.index.view, 0, clock()
    while (spent := clock() - start) < seconds * 1e9 or not count:
        need = view.needs.by_model[churn.ask().model.name][0]
        if need.nodes == 1:
            against = filters.Against(need, ())
            for row in view.every_row():
                against(row)
            count += 1
    return {"per_s": round(count * 1e9 / spent, 2), "decisions": count}


def twin(churn: Churn, seconds: float) -> dict[str, Any]:
    """The naive twin, asked the same way: every filter, card and rank of every node, each time."""
    view = churn.index.view
    rows = list(view.every_row())
    world = World(
        churn.catalog, tuple(row.node for row in rows), [h for row in rows for h in row.holds]
    )
    count, start = 0, clock()
    while (spent := clock() - start) < seconds * 1e9:
        ask = churn.ask()
        naive_decide(world, ask.model, ask.index, 1)
        count += 1
    return {"per_s": round(count * 1e9 / spent, 2), "decisions": count}


def explanations(churn: Churn) -> dict[str, Any]:
    """Rows of a refusal: the first hundred, and all; fresh each time, medians."""
    view, first, every, rows = churn.index.view, [], [], 0
    for model in churn.models:
        for at in range(2):
            tried = decide(Ask(model, at), view).tried[0]
            start = clock()
            tried.rejected[:100]
            then = clock()
            rows = max(rows, len(list(tried.rejected)))
            end = clock()
            first.append(then - start)
            every.append(end - then)
    return {"rows": rows, "first_100": told(first), "all": told(every)}


def replan(size: int) -> dict[str, Any]:
    """Everything from nothing: two replicas a node, with counts.

    As the scheduler and `roost plan` do it, without the collector, and once with it.
    """
    rng = random.Random(SEED)
    nodes, catalog = fleet_of(size, rng), catalog_of(size * 2, rng)
    fleet = Fleet(nodes=nodes)
    gc.collect()
    with uncollected():
        start = clock()
        index = Index(catalog, fleet)
        built = clock()
        del index
        again = clock()
        decisions = plan(catalog, fleet)
        planned = clock()
        read(decisions)
        end = clock()
    placed = sum(decision.outcome is Outcome.PLACED for decision in decisions)
    replicas = len(decisions)
    del decisions
    gc.collect()
    collecting = clock()
    plan(catalog, fleet)
    collected = clock()
    return {
        "replicas": replicas,
        "placed": placed,
        "index_ms": round((built - start) / 1e6, 1),
        "plan_ms": round((planned - again) / 1e6, 1),
        "counts_ms": round((end - planned) / 1e6, 1),
        "plan_with_the_collector_ms": round((collected - collecting) / 1e6, 1),
    }


def read(decisions: Iterable[Decision]) -> None:
    """The counts of every refusal."""
    for decision in decisions:
        for tried in decision.tried:
            tried.counts  # noqa: B018 - reading it is what is measured


def memory(size: int) -> dict[str, Any]:
    """What the index holds, and a plan's decisions beside it."""
    rng = random.Random(SEED)
    nodes, catalog = fleet_of(size, rng), catalog_of(size * 2, rng)
    gc.collect()
    tracemalloc.start()
    index = Index(catalog, Fleet(nodes=nodes))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    del index
    decisions = plan(catalog, Fleet(nodes=nodes))
    gc.collect()
    both, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "index_mb": round(held / 1e6, 1),
        "plan_with_decisions_mb": round(both / 1e6, 1),
        "peak_mb": round(peak / 1e6, 1),
        "replicas": len(decisions),
    }


def measured(size: int, *, quick: bool) -> dict[str, Any]:
    churn = Churn(size)
    view: View = churn.index.view
    found: dict[str, Any] = {
        "nodes": view.size,
        "gpus_used": round(churn.used / (size * 8), 3),
        "replicas": len(churn.running),
        "placements": placements(churn, 300 if quick else 3000),
        "events": events(churn, 100 if quick else 1000),
        "explanations": explanations(churn),
        "scan": scans(churn, 0.5 if quick else 3),
        "naive_twin": twin(churn, 0.5 if quick else 5),
    }
    per_s = found["placements"]["per_s"]
    found["times_the_scan"] = round(per_s / found["scan"]["per_s"], 1)
    found["times_the_twin"] = round(per_s / found["naive_twin"]["per_s"], 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller")
    parser.add_argument("--nodes", type=int, nargs="*")
    given = parser.parse_args()
    sizes = given.nodes or ((100, 1000) if given.quick else (100, 1000, 10_000, 50_000))
    whole = 1000 if given.quick else 10_000
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "fleets": [measured(size, quick=given.quick) for size in sizes],
        "replan": {"nodes": whole, **replan(whole)},
        "memory": {"nodes": whole, **memory(whole)},
    }
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
