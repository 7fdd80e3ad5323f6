"""What can be made to go wrong in a made-up fleet, in which words, and what its nodes then report.

A fault is a node, a kind and, for some kinds, a card or a replica: `h100-0001 ecc --gpu 3`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from roost.agent.facts import health
from roost.agent.facts.card import Evidence
from roost.domain.gpu import Gpu
from roost.domain.node import Facts
from roost.errors import Unusable


class Kind(StrEnum):
    """In the order in which they are listed to people."""

    SILENT = "silent"
    OFF = "off"
    ECC = "ecc"
    OFF_BUS = "off-bus"
    FOREIGN = "foreign"
    CRASH = "crash"
    CRASH_LOOP = "crash-loop"
    HANG = "hang"


MEANINGS: Final[Mapping[Kind, str]] = {
    Kind.SILENT: "its line to the server is cut; its engines go on",
    Kind.OFF: "it loses power, its engines with it; healed, it boots",
    Kind.ECC: "a card has an uncorrectable ECC error",
    Kind.OFF_BUS: "a card falls off the bus, and the engine on it ends",
    Kind.FOREIGN: "a process of somebody else's computes on a card",
    Kind.CRASH: "an engine ends, once; it may be one rank of several",
    Kind.CRASH_LOOP: "an engine ends, and again soon after each start",
    Kind.HANG: "an engine takes connections and answers none, until it is started again",
}
OF_A_CARD: Final = frozenset({Kind.ECC, Kind.OFF_BUS, Kind.FOREIGN})
OF_AN_ENGINE: Final = frozenset({Kind.CRASH, Kind.CRASH_LOOP, Kind.HANG})

CRASHED: Final = "RuntimeError: told to crash by roost fleet fault"
LOOPS: Final = "RuntimeError: told to crash at every start by roost fleet fault"
_OFF_THE_BUS: Final = "lost: it has fallen off the bus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong on one node."""

    node: str
    kind: Kind
    gpu: int | None = None
    replica: str | None = None

    def __str__(self) -> str:
        """As it is written on a command line."""
        words = [self.node, self.kind.value]
        words += [] if self.gpu is None else ["--gpu", str(self.gpu)]
        words += [] if self.replica is None else ["--replica", self.replica]
        return " ".join(words)


def lost_card(gpu: int) -> str:
    """The last words of an engine whose card has gone."""
    return f"RuntimeError: CUDA error: gpu {gpu} has fallen off the bus"


def checked(fault: Fault, facts: Facts, replicas: Collection[str]) -> Fault:
    """The fault, whole: of the only card or engine where none was named.

    Raises `Unusable` where it can't be, and says what to name.
    """
    if fault.kind not in OF_A_CARD and fault.gpu is not None:
        raise Unusable(f"{fault.kind} is no fault of a card: leave out --gpu")
    if fault.kind not in OF_AN_ENGINE and fault.replica is not None:
        raise Unusable(f"{fault.kind} is no fault of an engine: leave out --replica")
    if fault.kind in OF_A_CARD:
        return replace(fault, gpu=_card(fault, facts))
    if fault.kind in OF_AN_ENGINE:
        return replace(fault, replica=_replica(fault, replicas))
    return fault


def _card(fault: Fault, facts: Facts) -> int:
    if facts.gpus is None:
        raise Unusable(f"{fault.node} does not report its GPUs: choose another node")
    indices = [gpu.index for gpu in facts.gpus]
    if not indices:
        raise Unusable(f"{fault.node} has no GPU: choose another node")
    if fault.gpu is None and len(indices) > 1:
        raise Unusable(f"{fault.node} has GPUs {_range(indices)}: name one with --gpu")
    if fault.gpu is not None and fault.gpu not in indices:
        raise Unusable(f"{fault.node} has no GPU {fault.gpu}: it has {_range(indices)}")
    return indices[0] if fault.gpu is None else fault.gpu


def _range(indices: list[int]) -> str:
    first, last = min(indices), max(indices)
    if len(indices) == 1:
        return str(first)
    if len(indices) == last - first + 1:
        return f"{first} to {last}"
    return ", ".join(map(str, sorted(indices)))


def _replica(fault: Fault, replicas: Collection[str]) -> str:
    names = ", ".join(sorted(replicas))
    if not replicas:
        raise Unusable(
            f"{fault.node} runs no engine now", hint="which nodes do: roost ctl replicas"
        )
    if fault.replica is None and len(replicas) > 1:
        raise Unusable(f"{fault.node} runs {names}: name one with --replica")
    if fault.replica is not None and fault.replica not in replicas:
        raise Unusable(f"{fault.node} does not run {fault.replica}: it runs {names}")
    return next(iter(replicas)) if fault.replica is None else fault.replica


def facts_under(facts: Facts, faults: Iterable[Fault]) -> Facts:
    """What a node reports while these stand."""
    kinds: dict[int | None, set[Kind]] = {}
    for fault in faults:
        kinds.setdefault(fault.gpu, set()).add(fault.kind)
    if facts.gpus is None:
        return facts
    return replace(
        facts, gpus=tuple(_card_under(gpu, kinds.get(gpu.index, set())) for gpu in facts.gpus)
    )


def _card_under(gpu: Gpu, kinds: set[Kind]) -> Gpu:
    if Kind.FOREIGN in kinds:
        gpu = replace(gpu, foreign_processes=(gpu.foreign_processes or 0) + 1)
    evidence = Evidence(
        lost=_OFF_THE_BUS if Kind.OFF_BUS in kinds else None,
        uncorrectable_ecc=1 if Kind.ECC in kinds else None,
    )
    # In the words of a real agent.
    healthy, reason = health.judge(evidence)
    return gpu if healthy is not False else replace(gpu, healthy=False, unhealthy_reason=reason)
