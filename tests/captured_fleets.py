"""Fleets and wishes of other people's clusters, as Roost's words (tests/data/placement/SOURCES.md)."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName

DATA = Path(__file__).parent / "data" / "placement"
MIB = 1024**2


def gpustack_fleet(*files: str) -> Fleet:
    """The workers of GPUStack's fixtures, all or those of some files, under the fixture's name."""
    workers = json.loads((DATA / "gpustack_workers.json").read_text())
    return Fleet(
        nodes=tuple(_worker(worker) for worker in workers if not files or worker["file"] in files)
    )


def _worker(worker: dict[str, Any]) -> Node:
    name = worker["file"]
    storage = worker["filesystem"]
    return Node(
        name=NodeName(name),
        # One says `Running`, which is no state of a worker: only what is known to be bad is.
        ready=worker["state"] != "not_ready",
        facts=Facts(
            labels=worker["labels"],
            memory_bytes=worker["memory_total"],
            gpus=tuple(
                Gpu(
                    index=card["index"],
                    uuid=GpuUuid(f"GPU-{name}-{card['index']}"),
                    gpu_class=gpu_class(card["name"]),
                    memory_bytes=card["memory_total"],
                )
                for card in worker["gpu_devices"]
            ),
            storage=None if storage is None else tuple(_filesystems(storage)),
        ),
    )


def _filesystems(storage: list[dict[str, Any]]) -> Iterator[Filesystem]:
    by_source: dict[str, list[dict[str, Any]]] = {}
    for mount in storage:
        by_source.setdefault(mount["mount_from"], []).append(mount)
    for source, mounts in by_source.items():
        yield Filesystem(
            filesystem=source,
            mounts=tuple(mount["mount_point"] for mount in mounts),
            free_bytes=mounts[0]["available"],
            total_bytes=mounts[0]["total"],
        )


def gpu_class(product: str) -> GpuClass:
    """The whole product name, spelt one way."""
    return GpuClass(re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-"))


def alibaba_fleet() -> Fleet:
    """1,523 nodes of a GPU cluster."""
    nodes: list[Node] = []
    with (DATA / "alibaba_nodes.csv").open() as file:
        for row in csv.DictReader(file):
            for _ in range(int(row["nodes"])):
                cards = range(int(row["gpu"]))
                facts = Facts(
                    memory_bytes=int(row["memory_mib"]) * MIB,
                    gpus=tuple(Gpu(index=at, gpu_class=gpu_class(row["model"])) for at in cards),
                )
                nodes.append(Node(name=NodeName(f"openb-{len(nodes):04}"), facts=facts))
    return Fleet(nodes=tuple(nodes))


def alibaba_catalog() -> Catalog:
    """A model for each kind of pod that wants whole GPUs: a profile for each card it allows."""
    classes = sorted(
        {gpu.gpu_class for node in alibaba_fleet().nodes for gpu in node.facts.gpus or ()}
    )
    models: list[Model] = []
    with (DATA / "alibaba_pods.csv").open() as file:
        for row in csv.DictReader(file):
            allowed = [
                gpu_class(name) for name in dict.fromkeys(row["gpu_spec"].split("|")) if name
            ]
            count = int(row["num_gpu"])
            models.append(
                Model(
                    name=ModelName(f"pods-{len(models):02}"),
                    replicas=int(row["pods"]),
                    profiles=tuple(
                        Profile(
                            name=ProfileName(name),
                            engine=Engine.VLLM,
                            source="hf:some/model",
                            gpu_class=name,
                            gpus_per_node=count,
                            tensor_parallel=count,
                        )
                        for name in allowed or classes
                    ),
                )
            )
    return Catalog(models=tuple(models))
