"""Why a node is turned down: a code, the numbers, and a sentence made when somebody reads it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from roost.domain.units import has_gb, needs_gb


class Code(StrEnum):
    """In the order in which a node is charged. A code, once shipped, keeps its meaning."""

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
    """One reason against one node; `has` and `needs` are in `unit`, or all are `None`."""

    code: Code
    message: str
    has: int | None = None
    needs: int | None = None
    unit: Unit | None = None


_remembered = lru_cache(maxsize=4096)
"""For reasons that thousands of nodes share, word for word."""


@_remembered
def not_ready(since: str | None) -> Reason:
    """`is not ready since 12:03:10`."""
    return Reason(
        code=Code.NOT_READY,
        message="is not ready" if since is None else f"is not ready since {since}",
    )


@_remembered
def cordoned(why: str | None, *, draining: bool = False) -> Reason:
    """`is cordoned: fan failure`."""
    claim = "is cordoned and draining" if draining else "is cordoned"
    return Reason(code=Code.CORDONED, message=f"{claim}: {why}" if why else claim)


def label_mismatch(carried: Mapping[str, str], selector: Mapping[str, str]) -> Reason:
    """Every label of `selector` that is not carried, by key: one reason, however many they are."""
    return _mismatch(
        tuple(
            (key, carried.get(key), wanted)
            for key, wanted in sorted(selector.items())
            if carried.get(key) != wanted
        )
    )


@_remembered
def _mismatch(labels: tuple[tuple[str, str | None, str], ...]) -> Reason:
    parts = [
        f"does not carry {key}={wanted}"
        if has is None
        else f"carries {key}={has}, needs {key}={wanted}"
        for key, has, wanted in labels
    ]
    return Reason(code=Code.LABEL_MISMATCH, message="; ".join(parts))


@_remembered
def engine_absent(engine: str) -> Reason:
    """`does not have vllm installed`."""
    return Reason(code=Code.ENGINE_ABSENT, message=f"does not have {engine} installed")


def memory_short(total: int, *, claimed: int, holders: Iterable[str], needs: int) -> Reason:
    """`has 32 GB of memory, 24 held by coder-0, needs 24`; `has` is what is left, never below 0."""
    held = f", {needs_gb(claimed)} held by {_names(holders)}" if claimed else ""
    return Reason(
        code=Code.MEMORY_SHORT,
        message=f"has {has_gb(total)} GB of memory{held}, needs {needs_gb(needs)}",
        has=max(0, total - claimed),
        needs=needs,
        unit=Unit.BYTES,
    )


def disk_short(room: int, *, total: int | None, needs: int) -> Reason:
    """`has 24 GB free of 100 GB on local disk, needs 40`; `room` is what claims leave."""
    room = max(0, room)
    size = "" if total is None else f" of {has_gb(total)} GB"
    return Reason(
        code=Code.DISK_SHORT,
        message=f"has {has_gb(room)} GB free{size} on local disk, needs {needs_gb(needs)}",
        has=room,
        needs=needs,
        unit=Unit.BYTES,
    )


@_remembered
def gpus_unknown() -> Reason:
    """`does not report its GPUs`."""
    return Reason(code=Code.GPUS_UNKNOWN, message="does not report its GPUs")


@_remembered
def gpu_class_absent(gpu_class: str, *, has: int, needs: int) -> Reason:
    """`has no h100-80gb-hbm3, needs 2`."""
    return Reason(
        code=Code.GPU_CLASS_ABSENT,
        message=f"has {has or 'no'} {gpu_class}, needs {needs}",
        has=has,
        needs=needs,
        unit=Unit.GPUS,
    )


@_remembered
def gpu_memory_short(gpu_class: str, *, least: int, has: int, of: int, needs: int) -> Reason:
    """`has 4 rtx-4090 with 70 GB or more of 8, needs 8`; `least` is the memory each must have."""
    return Reason(
        code=Code.GPU_MEMORY_SHORT,
        message=f"has {has} {gpu_class} with {needs_gb(least)} GB or more of {of}, needs {needs}",
        has=has,
        needs=needs,
        unit=Unit.GPUS,
    )


def gpus_short(
    gpu_class: str,
    *,
    has: int,
    of: int,
    needs: int,
    allocated: int = 0,
    holders: Iterable[str] = (),
    unhealthy: int = 0,
    causes: Iterable[str] = (),
    foreign: int = 0,
) -> Reason:
    """`has 1 free of 4 h100 (2 allocated to m-0, m-1; 1 unhealthy: 3 ECC errors; …), needs 2`.

    Each card that is not free is counted once: allocated, else unhealthy, else held by a process.
    `of` counts those of the class that are large enough.
    """
    parts = []
    if allocated:
        parts.append(f"{allocated} allocated to {_names(holders)}")
    if unhealthy:
        why = ", ".join(dict.fromkeys(causes))
        parts.append(f"{unhealthy} unhealthy: {why}" if why else f"{unhealthy} unhealthy")
    if foreign:
        parts.append(f"{foreign} held by another process")
    told = f" ({'; '.join(parts)})" if parts else ""
    return Reason(
        code=Code.GPUS_SHORT,
        message=f"has {has} free of {of} {gpu_class}{told}, needs {needs}",
        has=has,
        needs=needs,
        unit=Unit.GPUS,
    )


@_remembered
def no_fabric(*, reported: bool) -> Reason:
    """`is on no fabric`, or `does not report fabrics`."""
    return Reason(
        code=Code.NO_FABRIC, message="is on no fabric" if reported else "does not report fabrics"
    )


def fabric_short(messages: Iterable[str], *, has: int, needs: int) -> Reason:
    """`ib0 has 1 node that fits, needs 2`: a message a fabric, the most that one has."""
    return Reason(
        code=Code.FABRIC_SHORT,
        message="; ".join(messages),
        has=has,
        needs=needs,
        unit=Unit.NODES,
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
