"""Whether each node is ready, not ready or lost, from how long it has been silent. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from roost.domain.gpu import Gpu, GpuUuid
from roost.domain.node import Facts, NodeName

MISSING: Final = "missing"
"""`unhealthy_reason` of a card that something is held on and that its node no longer lists."""


class NodeStatus(StrEnum):
    """What a node's silence says of it."""

    READY = "ready"
    NOT_READY = "not_ready"
    """Nothing new goes there; what runs there is still routed to."""
    LOST = "lost"
    """What ran there is placed elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """How long a node may be silent."""

    interval_s: float = 5
    missed: int = 4
    lost_after_s: float = 60
    vanish_share: float = 0.5
    """When more than this share of the fleet falls silent at once, the fault is more likely here or
    in the network than in the nodes: none of them becomes lost."""
    vanish_least: int = 3
    """So many silent nodes at least; in a smaller fleet each node is believed to be gone."""

    @property
    def not_ready_after_s(self) -> float:
        """Silence after which nothing new is placed."""
        return self.interval_s * self.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Every node's status, and who would be lost if not so many had fallen silent together."""

    status: Mapping[NodeName, NodeStatus]
    held_back: frozenset[NodeName] = frozenset()


def judge(
    silent_s: Mapping[NodeName, float],
    before: Mapping[NodeName, NodeStatus],
    rules: LeaseRules,
) -> Judgement:
    """Each node's status after so many seconds of silence, given what it was before."""
    fresh = {
        name: NodeStatus.READY if silence < rules.not_ready_after_s else NodeStatus.NOT_READY
        for name, silence in silent_s.items()
    }
    # A lost node stays lost until it is heard, and is no longer part of the fleet that may vanish.
    gone = {
        name
        for name, status in fresh.items()
        if status is NodeStatus.NOT_READY and before.get(name) is NodeStatus.LOST
    }
    vanishing = {
        name
        for name, status in fresh.items()
        if status is NodeStatus.NOT_READY and name not in gone
    }
    overdue = {name for name in vanishing if silent_s[name] >= rules.lost_after_s}
    together = (
        len(vanishing) >= rules.vanish_least
        and len(vanishing) > (len(fresh) - len(gone)) * rules.vanish_share
    )
    lost = gone if together else gone | overdue
    status = {name: NodeStatus.LOST if name in lost else fresh[name] for name in sorted(fresh)}
    return Judgement(status=status, held_back=frozenset(overdue) if together else frozenset())


def report_interval_s(nodes: int) -> float:
    """How often agents report: 5 s, up to 15 s so that a very large fleet stays cheap."""
    return min(15.0, max(5.0, nodes / 800))


def with_missing_gpus(facts: Facts, held: Iterable[Gpu]) -> Facts:
    """The facts, and each card in `held` that the node no longer lists, unhealthy: missing.

    An allocation must not lose its card from the books, and the card must not be offered.
    """
    if facts.gpus is None:
        return facts
    known: set[GpuUuid | None] = {gpu.uuid for gpu in facts.gpus}
    gone = sorted(
        {gpu.uuid: gpu for gpu in held if gpu.uuid and gpu.uuid not in known}.values(),
        key=lambda gpu: (gpu.index, gpu.uuid or ""),
    )
    used = {gpu.index for gpu in facts.gpus}
    listed = list(facts.gpus)
    for gpu in gone:
        index = gpu.index
        while index in used:  # another card has moved up into its place
            index += 1
        used.add(index)
        listed.append(replace(gpu, index=index, healthy=False, unhealthy_reason=MISSING))
    return replace(facts, gpus=tuple(listed))
