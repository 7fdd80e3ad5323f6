"""One way to run a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from roost.domain.gpu import GpuClass

ProfileName = NewType("ProfileName", str)


class Engine(StrEnum):
    """The programs that do the inference."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Where an engine's load is found on its metrics page: of each list, the first name present
    wins.
    """

    path: str = "/metrics"
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An engine, a source, and what it needs. A requirement that is `None` fits anywhere."""

    name: ProfileName
    engine: Engine
    source: str
    priority: int = 0
    gpu_class: GpuClass | None = None
    """`None`: runs on the CPU."""
    gpus_per_node: int = 0
    """0 exactly when there is no class."""
    nodes: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    node_selector: Mapping[str, str] = field(default_factory=dict)
    min_memory_bytes: int | None = None
    """Main memory, per node."""
    min_disk_bytes: int | None = None
    """On one local filesystem of each node."""
    min_gpu_memory_bytes: int | None = None
    """Of each GPU."""
    slots: int | None = None
    """Requests at once; `None`: learnt from the engine."""
    load_timeout_s: float = 1800
    """Of silence while loading."""
    drain_timeout_s: float = 60
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] | None = None
    """Engine `command` only: the argument vector, with `{host}`, `{port}`, `{source}` and so on to
    fill in."""
    health: str = "/health"
    """Engine `command` only."""
    metrics: MetricNames | None = None
    """Engine `command` only; `None`: not measured."""
