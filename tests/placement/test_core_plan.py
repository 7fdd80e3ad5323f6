"""Plans of many replicas: read in any order, and the same in any process."""

import json
import random
import subprocess
import sys
from typing import Any

from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.units import GB
from roost.placement import Ask, Index, Placed, decide, plan
from roost.placement.decision import Decision
from roost.placement.history import KEPT

H100 = GpuClass("h100")


def world() -> tuple[Catalog, Fleet]:
    """More replicas than a plan keeps views, on nodes of two fabrics."""
    nodes = tuple(
        Node(
            name=NodeName(f"n{number:02}"),
            facts=Facts(
                gpus=tuple(Gpu(index=at, gpu_class=H100) for at in range(number % 3 * 4)),
                memory_bytes=(100 + number) * GB,
                labels={"pool": "xyz"[number % 3]},
                fabrics=tuple(
                    FabricAttachment(name=FabricName(name), hcas=(HcaName("mlx5_0"),))
                    for name in ("ib1", "ib0", "ib2")[: number % 4]
                ),
            ),
        )
        for number in range(90)
    )
    shapes = ((1, 1), (2, 1), (0, 1), (4, 2), (4, 1))
    models = tuple(
        Model(
            name=ModelName(f"m{number}"),
            replicas=60,
            profiles=(
                Profile(
                    name=ProfileName("p"),
                    engine=Engine.VLLM if gpus else Engine.LLAMA_CPP,
                    source="model",
                    gpu_class=H100 if gpus else None,
                    gpus_per_node=gpus,
                    nodes=across,
                    min_memory_bytes=10 * GB,
                ),
            ),
        )
        for number, (gpus, across) in enumerate(shapes)
    )
    return Catalog(models=models), Fleet(nodes=nodes)


def told(decision: Decision) -> Any:
    tried = [
        (one.fit, list(one.counts.items()), tuple(one.rejected), one.fabrics)
        for one in decision.tried
    ]
    return (decision.shards, decision.fabric, decision.why, tuple(decision.would_fit_if), tried)


def test_an_answer_is_as_of_its_decision_in_whatever_order_answers_are_read() -> None:
    catalog, fleet = world()
    in_order = sorted(plan(catalog, fleet), key=lambda one: one.order)
    models = {model.name: model for model in catalog.models}
    index = Index(catalog, fleet)
    expected = []
    held = 0
    for decision in in_order:
        answer = decide(Ask(models[decision.model], decision.replica), index.view)
        expected.append(told(answer))
        if isinstance(answer, Placed):
            for hold in answer.allocations:
                index.allocate(hold)
                held += 1
    assert held > KEPT
    shuffled = list(enumerate(in_order))
    random.Random(7).shuffle(shuffled)
    for at, decision in shuffled:
        assert told(decision) == expected[at]


def test_the_bytes_are_the_same_whatever_the_seed_of_hashes() -> None:
    program = (
        "import sys, json, hashlib; sys.path[:0] = json.loads(sys.argv[1]); import test_core_plan as t;"
        "print(hashlib.sha256(repr([t.told(d) for d in t.plan(*t.world())]).encode()).hexdigest())"
    )
    here = __file__.rpartition("/")[0]
    paths = json.dumps([here, *sys.path])
    found = {
        subprocess.run(
            [sys.executable, "-c", program, paths],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
