"""The cards of this machine: from which source, how they are, and which are missing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from roost.agent.facts import health, topology
from roost.agent.facts.card import Card, Evidence, Instance, whole
from roost.agent.facts.gpu_class import UNKNOWN, gpu_class, mig_class
from roost.agent.facts.gpu_sources import Source, Sources
from roost.agent.facts.patient import Patient
from roost.agent.facts.processes import Ours, Proc, foreign
from roost.agent.facts.remembered import MISSING, Memory, with_missing
from roost.agent.facts.small_files import word
from roost.domain.gpu import Gpu, GpuDetail, GpuUuid

WITHIN_S: Final = 3.0
FORGET_S: Final = 60.0
"""A driver that is silent for so long is not taken at its last word any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Empty: none, clearly. None: not known, and the problem says why."""

    gpus: tuple[Gpu, ...] | None
    details: tuple[GpuDetail, ...] | None = None
    problems: tuple[str, ...] = ()


def labels(gpus: Sequence[Gpu] | None) -> dict[str, str]:
    """`roost/gpu-class` where all cards are of one class; a mixed node has no one class to name."""
    classes = {gpu.gpu_class for gpu in gpus or ()} - {UNKNOWN}
    return {"roost/gpu-class": classes.pop()} if len(classes) == 1 else {}


def gone(gpus: Sequence[Gpu] | None, uuids: Sequence[str]) -> str | None:
    """`gpu 3 (GPU-…) is missing`: the first of these that is known not to be there."""
    for gpu in gpus or ():
        reason = gpu.unhealthy_reason or ""
        if gpu.uuid in uuids and (reason == MISSING or reason.startswith("lost")):
            return f"gpu {gpu.index} ({gpu.uuid}) is {reason}"
    if gpus is None or any(gpu.uuid is None for gpu in gpus):
        return None
    # A MIG instance that was unmade, or a card of before this agent had a directory.
    listed = {gpu.uuid for gpu in gpus}
    return next(
        (f"{uuid} is no card of this machine" for uuid in uuids if uuid not in listed), None
    )


class Reader:
    """Reads the cards again and again; keeps NVML open, and what it has seen in `memory`."""

    def __init__(
        self,
        sources: Sources,
        *,
        library: Callable[[], Any] | None = None,
        memory: Memory | None = None,
        within_s: float = WITHIN_S,
    ) -> None:
        self._sources = sources
        self._driver = Patient(
            Source(sources, library=library).read, within_s=within_s, forget_s=FORGET_S
        )
        self._memory = memory

    def read(self, ours: Ours) -> Found:
        """All cards now; `ours` are the engines whose processes don't count as foreign."""
        answer = self._driver.look()
        late = []
        if answer.silent_s is not None:
            # A driver that hangs takes its cards with it, after a while.
            late.append(f"the GPU driver has not answered for {answer.silent_s:.0f} s")
        if answer.said is None:
            return Found(gpus=None, problems=tuple(f"GPUs are not known: {why}" for why in late))
        said, matrix, heard = answer.said
        problems = [*heard, *late]
        if any(cards.cards is None for cards in said):
            return Found(gpus=None, problems=tuple(problems))
        judge = _Judge(self._sources, ours)
        read: list[tuple[Card, Gpu, str | None]] = []
        for cards in said:
            before = [gpu for _, gpu, _ in read]
            for card, gpu in judge.cards(cards.cards or (), matrix, before):
                if gpu.uuid is None and card.uuid is not None:
                    problems.append(f"two GPUs have the uuid {card.uuid[:100]}")
                read.append((card, gpu, cards.driver))
            matrix = None  # it numbers the cards of the first source
        seen = [gpu for _, gpu, _ in read]
        known = self._memory.known() if self._memory is not None else ()
        gpus = list(with_missing(seen, known))
        if self._memory is not None:
            self._memory.keep(seen)
        details = [judge.detail(card, gpu, driver) for card, gpu, driver in read]
        for card, parent, driver in read:
            for part, gpu in judge.instances(card, parent, tuple(gpus)):
                gpus.append(gpu)
                details.append(judge.detail(part, gpu, driver))
        return Found(gpus=tuple(gpus), details=tuple(details), problems=tuple(problems))


class _Judge:
    """Makes cards of what sources say."""

    def __init__(self, sources: Sources, ours: Ours) -> None:
        self._root = sources.root
        self._graphics_too = sources.graphics_take_cards
        self._ours = ours
        self._look = Proc(sources.root, ours.agent)
        self._own_cgroup = self._look.own_cgroup()

    def cards(
        self, cards: Sequence[Card], matrix: topology.Matrix | None, before: Sequence[Gpu]
    ) -> Iterator[tuple[Card, Gpu]]:
        """Whole cards, numbered behind those `before`."""
        first, domain = _next(before)
        used: set[str | None] = {gpu.uuid for gpu in before}
        for card, own in zip(cards, topology.domains(cards, matrix), strict=True):
            healthy, reason = _of_card(card)
            uuid = card.uuid if card.uuid not in used else None
            used.add(uuid)
            yield (
                card,
                Gpu(
                    index=first + card.index,
                    gpu_class=gpu_class(card.product, card.pci_id),
                    uuid=GpuUuid(uuid) if uuid else None,
                    memory_bytes=card.memory_bytes,
                    nvlink_domain=None if own is None else domain + own,
                    healthy=healthy,
                    unhealthy_reason=reason,
                    foreign_processes=self._foreign(card, uuid),
                ),
            )

    def instances(
        self, card: Card, parent: Gpu, before: Sequence[Gpu]
    ) -> Iterator[tuple[Card, Gpu]]:
        """The MIG instances of a card, numbered behind all others."""
        first, domain = _next(before)
        used: set[str | None] = {gpu.uuid for gpu in before}
        for place, instance in enumerate(card.instances):
            uuid = _instance_uuid(card, instance)
            uuid = None if uuid in used else uuid
            used.add(uuid)
            healthy, reason = health.judge(_of_instance(card.evidence, instance))
            name = f"{card.product} MIG {instance.profile or '?'}" if card.product else None
            yield (
                replace(card, product=name),
                Gpu(
                    index=first + place,
                    gpu_class=mig_class(parent.gpu_class, instance.profile),
                    uuid=GpuUuid(uuid) if uuid else None,
                    memory_bytes=instance.memory_bytes,
                    # Instances reach nothing by NVLink.
                    nvlink_domain=domain + place,
                    healthy=healthy,
                    unhealthy_reason=reason,
                    foreign_processes=self._foreign(card, uuid, instance),
                ),
            )

    def detail(self, card: Card, gpu: Gpu, driver: str | None) -> GpuDetail:
        """The rest of what is known of a card."""
        return GpuDetail(
            index=gpu.index,
            uuid=gpu.uuid,
            product=card.product,
            driver=driver,
            pci_address=card.pci_address,
            numa_node=self._numa_node(card),
        )

    def _foreign(
        self, card: Card, uuid: str | None, instance: Instance | None = None
    ) -> int | None:
        listed = card.processes
        if instance is not None and instance.processes is not None:
            listed = instance.processes
        elif instance is not None and listed is not None:
            listed = tuple(one for one in listed if one.gpu_instance == instance.gpu_instance)
        return foreign(
            listed,
            ours=self._ours,
            look=self._look,
            given_to_us=uuid in self._ours.gpus,
            own_cgroup=self._own_cgroup,
            graphics_too=self._graphics_too,
        )

    def _numa_node(self, card: Card) -> int | None:
        """By sysfs, if what is at this address there is such a card: the file may be another's."""
        if card.pci_address is None:
            return None
        device = self._root / "sys/bus/pci/devices" / card.pci_address
        if card.pci_id is not None and word(device / "device") != card.pci_id.partition(":")[2]:
            return None
        return whole(word(device / "numa_node"))


def _of_card(card: Card) -> tuple[bool | None, str | None]:
    healthy, reason = health.judge(card.evidence)
    if not card.mig or card.evidence.lost is not None:
        return healthy, reason
    # Not ill, and not to be given to anybody either.
    count = len(card.instances)
    split = (
        f"split into {count} MIG instance{'' if count == 1 else 's'}"
        if count
        else "MIG mode is on, and it has no instances"
    )
    return False, split if reason is None else f"{reason}; {split}"


def _of_instance(evidence: Evidence, instance: Instance) -> Evidence:
    """What its card suffers from, it does, and has errors of its own."""
    own, whole_card = instance.uncorrectable_ecc, evidence.uncorrectable_ecc
    if own is None:
        return evidence
    return replace(evidence, uncorrectable_ecc=max(own, whole_card or 0))


def _next(gpus: Sequence[Gpu]) -> tuple[int, int]:
    """The first index and the first NVLink domain that none of them has."""
    domains = [gpu.nvlink_domain for gpu in gpus if gpu.nvlink_domain is not None]
    return 1 + max((gpu.index for gpu in gpus), default=-1), 1 + max(domains, default=-1)


def _instance_uuid(card: Card, instance: Instance) -> str | None:
    """Its own, or the name CUDA takes for it where the source gives none."""
    if instance.uuid is not None:
        return instance.uuid
    if card.uuid is None or instance.gpu_instance is None or instance.compute_instance is None:
        return None
    return f"MIG-{card.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
