"""Why a node is turned down: a code, the numbers, and a sentence made when somebody reads it."""

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """In the order in which a node is charged (FORMATS.md §3). A code, once shipped, keeps its meaning."""

    NOT_READY = "not_ready"
    CORDONED = "cordoned"
    LABEL_MISMATCH = "label_mismatch"
    ENGINE_ABSENT = "engine_absent"
    MEMORY_SHORT = "memory_short"
    DISK_SHORT = "disk_short"
    GPUS_UNKNOWN = "gpus_unknown"
    GPU_CLASS_ABSENT = "gpu_class_absent"
    GPU_MEMORY_SHORT = "gpu_memory_short"
    GPUS_SHORT = "gpus_short"
    NO_FABRIC = "no_fabric"
    FABRIC_SHORT = "fabric_short"


class Unit(StrEnum):
    """What `has` and `needs` count."""

    BYTES = "bytes"
    GPUS = "gpus"
    NODES = "nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason against one node; `has` and `needs` are in `unit`, all three `None` where there is none."""

    code: Code
    message: str
    has: int | None = None
    needs: int | None = None
    unit: Unit | None = None
