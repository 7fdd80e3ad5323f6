"""A stand-in for NVIDIA's NVML binding: cards that a file or a test describes, and their faults.

It has the functions, structures and errors of `pynvml` that Roost calls, with the same arguments.
An agent started with ROOST_FAKE_NVML=FILE reads FILE anew for each look at its cards, so a test
breaks and heals them by writing it.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

VARIABLE: Final = "ROOST_FAKE_NVML"
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
INVALID_ARGUMENT: Final = 2
GPU_IS_LOST: Final = 15
_TEXTS: Final = {
    2: "Invalid Argument", 3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found", 15: "GPU is lost", 18: "Driver/library version mismatch",
    999: "Unknown Error",
}  # fmt: skip
SWITCH: Final = "switch"


class NVMLError(Exception):
    """As the binding's: NVML's number in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS.get(value, f"error {value}"))
        self.value = value


class FabricInfo(ctypes.Structure):
    """`c_nvmlGpuFabricInfo_v3_t`."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
        ("healthMask", ctypes.c_uint32),
        ("healthSummary", ctypes.c_uint8),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeProcess:
    """One process on a card."""

    pid: int
    graphics: bool = False
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeFabric:
    """The NVSwitch fabric as one card sees it."""

    state: int = 3
    status: int = 0
    cluster: str = "00" * 16
    clique: int = 0
    summary: int = 1
    mask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeInstance:
    """A MIG device."""

    profile: str
    uuid: str
    gpu_instance: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCard:
    """One card; None: the call is not supported."""

    uuid: str
    name: str | None = "NVIDIA H100 80GB HBM3"
    pci: str = "00000000:00:00.0"
    pci_id: int = 0x233010DE
    memory: int | None = 85520809984
    lost: bool = False
    """It has fallen off the bus: every call says so."""
    ecc: int | None = 0
    rows: tuple[bool, bool] | None = (False, False)
    """Remapping pending, failed."""
    pages_pending: bool | None = False
    fabric: FakeFabric | None = None
    links: tuple[str, ...] | None = None
    """Where each NVLink ends: a PCI address, `switch`, or `` for an inactive one."""
    processes: tuple[FakeProcess, ...] | None = ()
    mig: tuple[FakeInstance, ...] | None = None
    """None: MIG mode is off."""
    failing: dict[str, int] = field(default_factory=dict)
    """Functions that fail, with NVML's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeMachine:
    """What the library finds."""

    cards: tuple[FakeCard, ...] = ()
    driver: str = "590.48.01"
    init: int = 0
    """What nvmlInit answers with, if it fails."""

    def save(self, path: Path) -> None:
        """Write it where an agent with ROOST_FAKE_NVML reads it, in one step."""
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(msgspec.json.encode(self))
        temporary.replace(path)

    def but(self, index: int, **changes: Any) -> "FakeMachine":
        """The same with one card changed."""
        cards = list(self.cards)
        cards[index] = replace(cards[index], **changes)
        return replace(self, cards=tuple(cards))


def eight_h100() -> FakeMachine:
    """A node of eight GPUs behind NVSwitches."""
    return FakeMachine(
        cards=tuple(
            FakeCard(
                uuid=f"GPU-{number:08x}-0000-4000-8000-000000000000",
                pci=f"00000000:{0x10 + number:02X}:00.0",
                fabric=FakeFabric(),
                links=(SWITCH,) * 18,
            )
            for number in range(8)
        )
    )


def stand_in(env: Mapping[str, str]) -> Callable[[], Any] | None:
    """The library that ROOST_FAKE_NVML asks for; None: NVIDIA's own."""
    path = env.get(VARIABLE)
    if not path:
        return None
    return lambda: FakeNvml(lambda: msgspec.json.decode(Path(path).read_bytes(), type=FakeMachine))


class FakeNvml:
    """The module `pynvml`, as far as it goes."""

    NVMLError = NVMLError
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    c_nvmlGpuFabricInfo_v3_t = FabricInfo  # noqa: N815 - the binding's spelling

    def __init__(self, machine: Callable[[], FakeMachine]) -> None:
        self._look = machine
        self._machine = FakeMachine()
        self.calls = 0
        self.open = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = _ANSWERS.get(name)
        if answer is None:
            raise AttributeError(name)

        def call(handle: Any, *arguments: Any) -> Any:
            self.calls += 1
            card = handle[0] if isinstance(handle, tuple) else handle
            if card.lost:
                raise NVMLError(GPU_IS_LOST)
            if name in card.failing:
                raise NVMLError(card.failing[name])
            return answer(handle, *arguments)

        return call

    def nvmlInit(self) -> None:  # noqa: N802 - the binding's spelling, as below
        """Open the library."""
        self._machine = self._look()
        if self._machine.init:
            raise NVMLError(self._machine.init)
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Close it."""
        self.open = False

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """The driver's version."""
        return self._machine.driver

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many cards there are."""
        self._machine = self._look()
        if self._machine.init:
            raise NVMLError(self._machine.init)
        return len(self._machine.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:  # noqa: N802
        """A card."""
        card = self._machine.cards[index]
        if "nvmlDeviceGetHandleByIndex" in card.failing:
            raise NVMLError(card.failing["nvmlDeviceGetHandleByIndex"])
        return card


_MigHandle = tuple[FakeCard, FakeInstance]
Handle = FakeCard | _MigHandle


def _card(handle: Handle) -> FakeCard:
    return handle if isinstance(handle, FakeCard) else handle[0]


def _or_unsupported(value: Any) -> Any:
    if value is None:
        raise NVMLError(NOT_SUPPORTED)
    return value


def _name(handle: Handle) -> Any:
    if isinstance(handle, FakeCard):
        return _or_unsupported(handle.name)
    return f"{handle[0].name} MIG {handle[1].profile}"


def _memory(handle: Handle) -> Any:
    total = handle.memory if isinstance(handle, FakeCard) else handle[1].memory
    return SimpleNamespace(total=_or_unsupported(total), used=0, free=total)


def _running(handle: Handle, *, graphics: bool) -> Any:
    listed = _or_unsupported(_card(handle).processes)
    instance = None if isinstance(handle, FakeCard) else handle[1].gpu_instance
    return [
        SimpleNamespace(
            pid=one.pid,
            usedGpuMemory=1 << 30,
            gpuInstanceId=0xFFFFFFFF if one.gpu_instance is None else one.gpu_instance,
        )
        for one in listed
        if one.graphics is graphics and (instance is None or one.gpu_instance == instance)
    ]


def _fabric(handle: Handle, reference: Any) -> int:
    fabric = _or_unsupported(_card(handle).fabric)
    info = reference._obj  # noqa: SLF001 - where ctypes keeps what byref was given
    info.clusterUuid[:] = bytes.fromhex(fabric.cluster)
    info.status, info.cliqueId, info.state = fabric.status, fabric.clique, fabric.state
    info.healthSummary, info.healthMask = fabric.summary, fabric.mask
    return 0


def _link(handle: Handle, link: int) -> str:
    links = _or_unsupported(_card(handle).links)
    if link >= len(links):
        raise NVMLError(INVALID_ARGUMENT)
    return cast(str, links[link])


def _link_peer(handle: Handle, link: int) -> Any:
    peer = _link(handle, link)
    if not peer:
        raise NVMLError(INVALID_ARGUMENT)
    return SimpleNamespace(busId=peer)


def _mig(handle: Handle) -> tuple[FakeInstance, ...]:
    return _card(handle).mig or ()


def _instance(handle: Handle, index: int) -> _MigHandle:
    if index >= len(_mig(handle)):
        raise NVMLError(NOT_FOUND)
    return _card(handle), _mig(handle)[index]


_ANSWERS: Final[Mapping[str, Callable[..., Any]]] = {
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetUUID": lambda h: h.uuid if isinstance(h, FakeCard) else h[1].uuid,
    "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(
        busId=_card(h).pci, pciDeviceId=_card(h).pci_id
    ),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetTemperature": lambda _h, _sensor: 40,
    "nvmlDeviceGetTotalEccErrors": lambda h, _type, _counter: _or_unsupported(_card(h).ecc),
    "nvmlDeviceGetRemappedRows": lambda h: (0, 0, *_or_unsupported(_card(h).rows)),
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda h: int(
        _or_unsupported(_card(h).pages_pending)
    ),
    "nvmlDeviceGetRepairStatus": lambda _h: _or_unsupported(None),
    "nvmlDeviceGetFieldValues": lambda _h, fields: [
        SimpleNamespace(nvmlReturn=NOT_SUPPORTED) for _ in fields
    ],
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda h: _running(h, graphics=False),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda h: _running(h, graphics=True),
    "nvmlDeviceGetMigMode": lambda h: [int(h.mig is not None)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda _h: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceGetGpuInstanceId": lambda h: h[1].gpu_instance,
    "nvmlDeviceGetComputeInstanceId": lambda _h: 0,
    "nvmlDeviceGetNvLinkState": lambda h, link: int(bool(_link(h, link))),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda h, link: 2 if _link(h, link) == SWITCH else 0,
    "nvmlDeviceGetNvLinkRemotePciInfo": _link_peer,
}
