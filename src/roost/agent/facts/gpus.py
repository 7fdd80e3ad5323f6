"""The cards of this machine: from which source, how they are, and which are missing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from roost.agent.facts import amd, amd_sysfs, health, nvidia_xml, nvml, topology
from roost.agent.facts.card import Card, Cards, Instance, whole
from roost.agent.facts.gpu_class import gpu_class, mig_class
from roost.agent.facts.processes import Ours, Proc, foreign
from roost.agent.facts.remembered import Memory, with_missing
from roost.domain.gpu import Gpu, GpuDetail, GpuUuid

_NVIDIA: Final = "10de"
_SIGNS: Final = ("proc/driver/nvidia", "sys/module/nvidia", "dev/nvidiactl", "dev/dxg")
"""Of NVIDIA's driver; the last is WSL's."""
_MOST_BYTES: Final = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where GPU facts come from; files instead of the driver where the operator names them."""

    root: Path = Path("/")
    nvidia_smi_xml: Path | None = None
    nvidia_smi_topo: Path | None = None
    amd_json: Path | None = None
    graphics_take_cards: bool = False
    """Whether a process that only draws makes a card taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Empty: none, clearly. None: not known, and the problem says why."""

    gpus: tuple[Gpu, ...] | None
    details: tuple[GpuDetail, ...] | None = None
    problems: tuple[str, ...] = ()


class Reader:
    """Reads the cards again and again; keeps NVML open, and what it has seen in `memory`."""

    def __init__(
        self,
        sources: Sources,
        *,
        library: Callable[[], Any] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._sources = sources
        self._given = library is not None
        self._nvml = nvml.Session(library or nvml.load)
        self._memory = memory

    def read(self, ours: Ours) -> Found:
        """All cards now; `ours` are the engines whose processes don't count as foreign."""
        said = [self._nvidia(), self._amd()]
        problems = [problem for cards in said for problem in cards.problems]
        if any(cards.cards is None for cards in said):
            return Found(gpus=None, problems=tuple(problems))
        matrix, unread = self._matrix()
        problems += unread
        whole_cards: list[Gpu] = []
        parts: list[tuple[Card, Gpu, str | None]] = []
        details: list[GpuDetail] = []
        look = Proc(self._sources.root, ours.agent)
        judge = _Judge(self._sources, ours, look)
        for cards in said:
            for card, gpu in judge.cards(cards.cards or (), matrix, whole_cards):
                if gpu.uuid is None and card.uuid is not None:
                    problems.append(f"two GPUs have the uuid {card.uuid[:100]}")
                whole_cards.append(gpu)
                details.append(judge.detail(card, gpu, cards.driver))
                parts.append((card, gpu, cards.driver))
            matrix = None  # it numbers NVIDIA's cards
        known = self._memory.known() if self._memory is not None else ()
        gpus = list(with_missing(whole_cards, known))
        if self._memory is not None:
            self._memory.keep(whole_cards)
        for card, parent, driver in parts:
            for gpu, product in judge.instances(card, parent, gpus):
                gpus.append(gpu)
                details.append(judge.detail(replace(card, product=product), gpu, driver))
        return Found(gpus=tuple(gpus), details=tuple(details), problems=tuple(problems))

    def _nvidia(self) -> Cards:
        if self._sources.nvidia_smi_xml is not None:
            return _from_file(self._sources.nvidia_smi_xml, nvidia_xml.read)
        root = self._sources.root
        sign = next((name for name in _SIGNS if (root / name).exists()), None)
        if not self._given and root != Path("/"):
            if sign is None:
                return Cards(cards=())
            hint = "give what nvidia-smi -q -x printed there: --nvidia-smi-xml FILE"
            return _unknown(f"/{sign} is there, and NVML is not read under a root path; {hint}")
        there = sign is not None or _nvidia_on_pci(root)
        if not (self._given or there):
            return Cards(cards=())
        try:
            return self._nvml.read()
        except nvml.Failed as cause:
            if cause.code == nvml.NO_DRIVER and not there:
                return Cards(cards=())
            if cause.code == nvml.NO_LIBRARY and sign is None:
                problem = "this machine has NVIDIA cards and no driver for them"
                return Cards(cards=(), problems=(problem,) if there else ())
            return _unknown(f"NVML does not work: {cause.message}")

    def _amd(self) -> Cards:
        if self._sources.amd_json is not None:
            return _from_file(self._sources.amd_json, amd.read)
        return amd_sysfs.read(self._sources.root)

    def _matrix(self) -> tuple[topology.Matrix | None, list[str]]:
        path = self._sources.nvidia_smi_topo
        if path is None:
            return None, []
        try:
            text = _bytes(path).decode("utf-8", "replace")
        except OSError as cause:
            return None, [f"NVLink domains are not read: {cause}"]
        matrix = topology.parse_matrix(text)
        if matrix is None:
            return None, [f"{path} has no table of nvidia-smi topo -m: NVLink is not known"]
        return matrix, []


class _Judge:
    """Makes cards of what sources say."""

    def __init__(self, sources: Sources, ours: Ours, look: Proc) -> None:
        self._root = sources.root
        self._graphics_too = sources.graphics_take_cards
        self._ours = ours
        self._look = look
        self._own_cgroup = look.own_cgroup()

    def cards(
        self, cards: Sequence[Card], matrix: topology.Matrix | None, before: Sequence[Gpu]
    ) -> Iterator[tuple[Card, Gpu]]:
        """Whole cards, numbered behind those `before`."""
        first = 1 + max((gpu.index for gpu in before), default=-1)
        domain = 1 + max(
            (g.nvlink_domain for g in before if g.nvlink_domain is not None), default=-1
        )
        used = {gpu.uuid for gpu in before}
        for card, own in zip(cards, topology.domains(cards, matrix), strict=True):
            healthy, reason = _of_card(card)
            uuid = card.uuid if card.uuid not in used else None
            used.add(GpuUuid(uuid) if uuid else None)
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
    ) -> Iterator[tuple[Gpu, str | None]]:
        """The MIG instances of a card, numbered behind all others, and their products' names."""
        for place, instance in enumerate(card.instances):
            index = 1 + place + max((gpu.index for gpu in before), default=-1)
            domain = 1 + place + max(
                (gpu.nvlink_domain for gpu in before if gpu.nvlink_domain is not None), default=-1
            )  # fmt: skip
            uuid = _instance_uuid(card, instance)
            evidence = card.evidence
            own = instance.uncorrectable_ecc
            if own is not None:
                evidence = replace(
                    evidence, uncorrectable_ecc=max(own, evidence.uncorrectable_ecc or 0)
                )
            healthy, reason = health.judge(evidence)
            yield (
                Gpu(
                    index=index,
                    gpu_class=mig_class(parent.gpu_class, instance.profile),
                    uuid=GpuUuid(uuid) if uuid else None,
                    memory_bytes=instance.memory_bytes,
                    nvlink_domain=domain,
                    healthy=healthy,
                    unhealthy_reason=reason,
                    foreign_processes=self._foreign(card, uuid, instance),
                ),
                f"{card.product} MIG {instance.profile or '?'}" if card.product else None,
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
        if card.pci_id is not None and _word(device / "device") != card.pci_id.partition(":")[2]:
            return None
        return whole(_word(device / "numa_node"))


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


def _instance_uuid(card: Card, instance: Instance) -> str | None:
    """Its own, or the name CUDA takes for it where the source gives none."""
    if instance.uuid is not None:
        return instance.uuid
    if card.uuid is None or instance.gpu_instance is None or instance.compute_instance is None:
        return None
    return f"MIG-{card.uuid}/{instance.gpu_instance}/{instance.compute_instance}"


def _from_file(path: Path, read: Callable[[bytes], Cards]) -> Cards:
    try:
        return read(_bytes(path))
    except OSError as cause:
        return _unknown(f"{path} cannot be read: {cause.strerror}")


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def _unknown(why: str) -> Cards:
    return Cards(cards=None, problems=(f"GPUs are not known: {why}",))


def _nvidia_on_pci(root: Path) -> bool:
    """Whether a display or 3D controller of NVIDIA's is on the bus, driver or not."""
    try:
        devices = list((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return False
    return any(
        _word(device / "vendor") == _NVIDIA and (_word(device / "class") or "").startswith("03")
        for device in devices
    )


def _word(place: Path) -> str | None:
    try:
        return place.read_text(errors="replace").strip().lower().removeprefix("0x") or None
    except OSError:
        return None
