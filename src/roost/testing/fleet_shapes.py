"""Which fleets can be made up: nodes of a shape, the same ones for the same seed.

Kinds of hosts are those of published machines (HGX H100, HGX A100, L40S servers, laptops); what
differs from node to node, which facts are missing and which cards are ill is drawn by the seed.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.node import Facts, Filesystem, Node, NodeName

_GIB: Final = 2**30
_GB: Final = 10**9
_UNKNOWN: Final = 0.03
"""Of nodes: the part that does not report one of its facts."""
_ILL: Final = 0.02
"""Of cards."""
_FOREIGN: Final = 0.01
"""Of cards: those that somebody else computes on."""
_NODES_PER_FABRIC: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of host."""

    name: str
    memory_gib: tuple[int, ...]
    disk_gb: tuple[int, ...]
    engines: frozenset[str] = frozenset({"llama.cpp"})
    gpu_class: str | None = None
    gpu_memory_bytes: int = 0
    gpus: int = 0
    nvlink: bool = False
    hcas: int = 0


_DATACENTRE: Final = frozenset({"llama.cpp", "vllm", "sglang"})
_H100: Final = _Kind(name="h100", memory_gib=(1024, 2048), disk_gb=(7680, 15360),
                     engines=_DATACENTRE, gpu_class="h100-80gb-hbm3",
                     gpu_memory_bytes=85_520_809_984, gpus=8, nvlink=True, hcas=8)  # fmt: skip
_A100: Final = _Kind(name="a100", memory_gib=(1024,), disk_gb=(3840, 7680), engines=_DATACENTRE,
                     gpu_class="a100-sxm4-80gb", gpu_memory_bytes=80 * _GIB, gpus=8, nvlink=True,
                     hcas=4)  # fmt: skip
_L40S: Final = _Kind(name="l40s", memory_gib=(256, 512), disk_gb=(1920, 3840), engines=_DATACENTRE,
                     gpu_class="l40s", gpu_memory_bytes=46_068 * 2**20, gpus=4)  # fmt: skip
_CPU: Final = _Kind(name="cpu", memory_gib=(64, 128, 256, 512), disk_gb=(480, 960))
_LAPTOP: Final = _Kind(name="laptop", memory_gib=(16, 32), disk_gb=(256, 512, 1024))
_GAMING: Final = _Kind(name="gaming-laptop", memory_gib=(32, 64), disk_gb=(1024, 2048),
                       gpu_class="rtx-4090-laptop-gpu", gpu_memory_bytes=16 * _GIB,
                       gpus=1)  # fmt: skip

SHAPES: Final[Mapping[str, Mapping[_Kind, int]]] = {
    "mixed": {_H100: 25, _A100: 20, _L40S: 30, _CPU: 25},
    "h100": {_H100: 1},
    "a100": {_A100: 1},
    "l40s": {_L40S: 1},
    "cpu": {_CPU: 1},
    "laptops": {_LAPTOP: 70, _GAMING: 30},
}
"""How many of each kind, in proportion."""


def make_fleet(shape: str, nodes: int, seed: int) -> Fleet:
    """`nodes` nodes of a shape (a key of `SHAPES`), decided by the seed."""
    # Not for secrets: for the same fleet again.
    draw = random.Random(f"{shape} {nodes} {seed}")  # noqa: S311
    kinds = SHAPES[shape]
    drawn = draw.choices(list(kinds), weights=list(kinds.values()), k=nodes)
    count: dict[str, int] = {}
    made = []
    for kind in drawn:
        number = count[kind.name] = count.get(kind.name, 0) + 1
        facts = _forgetful(_facts(kind, number, draw), draw)
        made.append(Node(name=NodeName(f"{kind.name}-{number:04}"), facts=facts))
    return Fleet(nodes=tuple(sorted(made, key=lambda node: node.name)))


def _facts(kind: _Kind, number: int, draw: random.Random) -> Facts:
    total = draw.choice(kind.disk_gb) * _GB
    fabric = FabricAttachment(
        name=FabricName(f"{kind.name}-ib{(number - 1) // _NODES_PER_FABRIC}"),
        hcas=tuple(HcaName(f"mlx5_{index}") for index in range(kind.hcas)),
    )
    disk = Filesystem(
        filesystem="/dev/nvme0n1p2",
        mounts=("/",),
        free_bytes=int(total * draw.uniform(0.1, 0.9)),
        total_bytes=total,
    )
    return Facts(
        labels={"kind": kind.name},
        memory_bytes=draw.choice(kind.memory_gib) * _GIB,
        engines=kind.engines,
        gpus=tuple(_gpu(kind, index, draw) for index in range(kind.gpus)),
        fabrics=(fabric,) if kind.hcas else (),
        storage=(disk,),
    )


def _gpu(kind: _Kind, index: int, draw: random.Random) -> Gpu:
    digits = f"{draw.getrandbits(128):032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    ill = draw.random() < _ILL
    return Gpu(
        index=index,
        gpu_class=GpuClass(kind.gpu_class or ""),
        uuid=GpuUuid("GPU-" + "-".join(parts)),
        memory_bytes=kind.gpu_memory_bytes,
        nvlink_domain=0 if kind.nvlink else index,
        healthy=not ill,
        unhealthy_reason="double-bit ECC errors" if ill else None,
        foreign_processes=int(draw.random() < _FOREIGN),
    )


_FORGET: Final[tuple[Callable[[Facts], Facts], ...]] = (
    lambda facts: replace(facts, memory_bytes=None),
    lambda facts: replace(facts, engines=None),
    lambda facts: replace(facts, gpus=None),
    lambda facts: replace(facts, fabrics=None),
    lambda facts: replace(facts, storage=None),
)


def _forgetful(facts: Facts, draw: random.Random) -> Facts:
    """Now and then a node does not report something."""
    return draw.choice(_FORGET)(facts) if draw.random() < _UNKNOWN else facts
