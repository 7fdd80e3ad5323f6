"""The cards as NVIDIA's management library (NVML) describes them; any call may be unsupported."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from roost.agent.facts.card import (
    MOST_CARDS,
    SWITCH,
    Card,
    Cards,
    Evidence,
    Instance,
    Process,
    pci_address,
)

NO_LIBRARY: Final = 12
NO_DRIVER: Final = 9
_NOT_SUPPORTED: Final = 3
_FUNCTION_NOT_FOUND: Final = 13
_GPU_IS_LOST: Final = 15
_RESET_REQUIRED: Final = 16
_MOST_LINKS: Final = 36
_MOST_BYTES: Final = 1 << 50
_FABRIC_STATES: Final = {1: "Not Started", 2: "In Progress", 3: "Completed"}
_FABRIC_UNHEALTHY: Final = 2
"""`NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY`."""
_ROUTE_UNHEALTHY: Final = (4, "route unhealthy")
_ACCESS_TIMEOUT: Final = (6, "access timeout recovery")
_RECOVERY: Final = {
    1: "GPU Reset", 2: "Node Reboot", 3: "Drain P2P", 4: "Drain and Reset",
    5: "Recover IMEX Domain", 6: "Bus Reset", 7: "System Reboot",
}  # fmt: skip


class Failed(Exception):
    """NVML cannot be used at all; `code` is NVML's own, None without a library to ask."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def load() -> Any:
    """NVIDIA's own binding, loaded when it is first needed."""
    import pynvml

    return pynvml


class Session:
    """NVML, kept open between readings.

    Without the persistence daemon the driver forgets a card's volatile error counters when its last
    client goes: closing after each reading would wipe out the evidence.
    """

    def __init__(self, library: Callable[[], Any] = load) -> None:
        self._load = library
        self._library: Any = None

    def read(self) -> Cards:
        """Every card; raises `Failed`."""
        fresh = self._library is None
        try:
            return _read(self._opened())
        except Failed:
            self.close()
            if fresh:
                raise
        # The driver may have been reloaded under an old session.
        try:
            return _read(self._opened())
        except Failed:
            self.close()
            raise

    def on_cards(self, uuids: Sequence[str]) -> tuple[int, ...] | None:
        """Pids that compute on these cards or MIG instances; None: it doesn't say for one of them.

        Raises `Failed`.
        """
        found: dict[str, tuple[Process, ...] | None] = {}
        for card in self.read().cards or ():
            places: tuple[Card | Instance, ...] = (card, *card.instances)
            found.update({place.uuid: place.processes for place in places if place.uuid})
        pids: set[int] = set()
        for uuid in uuids:
            processes = found.get(uuid)
            if processes is None:
                return None
            pids.update(one.pid for one in processes if one.compute and one.pid is not None)
        return tuple(sorted(pids))

    def close(self) -> None:
        """Let the driver go; the next reading opens it again."""
        library, self._library = self._library, None
        if library is not None:
            _Asker(library)("nvmlShutdown")

    def _opened(self) -> Any:
        if self._library is None:
            try:
                library = self._load()
            except ImportError as cause:
                raise Failed(f"the package nvidia-ml-py is not there: {cause}", None) from None
            try:
                library.nvmlInit()
            except (library.NVMLError, OSError, AttributeError) as cause:
                raise Failed(str(cause), getattr(cause, "value", None)) from None
            self._library = library
        return self._library


class _Asker:
    """Asks the library, and answers None where it can't say; notes what it says of a lost card."""

    def __init__(self, library: Any) -> None:
        self.library = library
        # Of a function that is newer than the driver, the binding says it in another way.
        self._mismatch = getattr(library, "NVMLLibraryMismatchError", ())
        self.lost: str | None = None
        self.failure: str | None = None
        self.code: int | None = None
        """Of the last call that failed."""

    def __call__(self, name: str, *arguments: Any) -> Any:
        self.code = None
        call = getattr(self.library, name, None)
        if call is None:
            self.code = _FUNCTION_NOT_FOUND
            return None
        try:
            return call(*arguments)
        except self.library.NVMLError as cause:
            self.code = getattr(cause, "value", None)
            if self.code == _GPU_IS_LOST:
                self.lost = "lost: it has fallen off the bus"
            elif self.code == _RESET_REQUIRED:
                self.lost = self.lost or "it requires a reset"
            self.failure = str(cause)
        except self._mismatch as cause:
            self.code, self.failure = _FUNCTION_NOT_FOUND, str(cause)
        except (AttributeError, TypeError, ValueError, OSError, ctypes.ArgumentError) as cause:
            # An older library without the function, or text of it that isn't text.
            self.failure = str(cause)
        return None


def _read(library: Any) -> Cards:
    ask = _Asker(library)
    count = ask("nvmlDeviceGetCount")
    if count is None:
        raise Failed(ask.failure or "it does not say how many GPUs there are", None)
    problems: list[str] = []
    if count > MOST_CARDS:
        raise Failed(f"it says there are {count} GPUs", None)
    cards = []
    for index in range(count):
        of_card = _Asker(library)
        handle = of_card("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            why = of_card.lost or f"it does not answer: {of_card.failure}"
            problems.append(f"GPU {index} cannot be read: {why}")
            cards.append(Card(index=index, evidence=Evidence(lost=why)))
        else:
            cards.append(_card(of_card, index, handle))
    return Cards(
        cards=tuple(cards),
        driver=_text(ask("nvmlSystemGetDriverVersion")),
        problems=tuple(problems),
    )


def _card(ask: _Asker, index: int, handle: Any) -> Card:
    pci = ask("nvmlDeviceGetPciInfo", handle)
    mode = ask("nvmlDeviceGetMigMode", handle)
    mig = bool(mode[0]) if mode else None
    fabric = _fabric(ask, handle)
    card = Card(
        index=index,
        product=_text(ask("nvmlDeviceGetName", handle)),
        uuid=_text(ask("nvmlDeviceGetUUID", handle)),
        pci_address=pci_address(_text(getattr(pci, "busId", None))),
        pci_id=_pci_id(getattr(pci, "pciDeviceId", None)),
        memory_bytes=_memory(ask, handle),
        mig=mig,
        instances=tuple(_instances(ask, handle)) if mig else (),
        processes=_processes(ask, handle),
        nvlinks=None if mig else _nvlinks(ask.library, handle),
        clique=_clique(fabric),
    )
    # Last, when every call has had its chance to say that the card is lost.
    return replace(card, evidence=_evidence(ask, handle, fabric))


def _evidence(ask: _Asker, handle: Any, fabric: Any) -> Evidence:
    # Of the GPU's core.
    answers = ask("nvmlDeviceGetTemperature", handle, 0) is not None
    answers |= ask("nvmlDeviceGetMemoryInfo", handle) is not None
    # 1: uncorrected; 0: volatile.
    ecc = _count(ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0))
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    pages = ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    repair = ask("nvmlDeviceGetRepairStatus", handle)
    action = _recovery(ask, handle)
    return Evidence(
        answers=answers and ask.lost is None,
        lost=ask.lost,
        uncorrectable_ecc=ecc,
        row_remap_pending=bool(rows[2]) if rows else None,
        row_remap_failed=bool(rows[3]) if rows else None,
        page_retirement_pending=bool(pages) if pages is not None else None,
        repair_pending=any(repair) if repair is not None else None,
        recovery_action=action,
        fabric_state=_FABRIC_STATES.get(fabric.state) if fabric is not None else None,
        fabric_status=_fabric_status(fabric),
        fabric_ill=_fabric_ill(fabric),
    )


def _fabric(ask: _Asker, handle: Any) -> Any:
    for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        make = getattr(ask.library, name, None)
        if make is None:
            continue
        info = make()
        if ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is not None:
            return info
    return None


def _fabric_status(fabric: Any) -> str | None:
    if fabric is None or fabric.state != 3:
        return None
    return "Success" if fabric.status == 0 else f"error {fabric.status}"


def _fabric_ill(fabric: Any) -> str | None:
    if getattr(fabric, "healthSummary", None) != _FABRIC_UNHEALTHY:
        return None
    wrong = [
        name
        for shift, name in (_ROUTE_UNHEALTHY, _ACCESS_TIMEOUT)
        if (fabric.healthMask >> shift) & 3 == 1
    ]
    return ", ".join(wrong) or "no cause is given"


def _clique(fabric: Any) -> str | None:
    if fabric is None or fabric.state != 3:
        return None
    cluster = bytes(fabric.clusterUuid).hex()
    return f"{cluster}/{fabric.cliqueId}" if cluster.strip("0") else None


def _recovery(ask: _Asker, handle: Any) -> str | None:
    field = getattr(ask.library, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return None
    values = ask("nvmlDeviceGetFieldValues", handle, [field])
    if not values or values[0].nvmlReturn != 0:
        return None
    return _RECOVERY.get(values[0].value.uiVal)


def _nvlinks(library: Any, handle: Any) -> frozenset[str] | None:
    """Where its active links end; None when that can't be told, empty when it has none."""
    ask = _Asker(library)
    peers: set[str] = set()
    silent = 0
    for link in range(_MOST_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            if link == 0 and ask.code != _NOT_SUPPORTED:
                return None
            break  # past the last link, or a card without any
        if state:
            peer = _peer(ask, handle, link)
            silent += peer is None
            peers |= {peer} if peer is not None else set()
    return None if silent and not peers else frozenset(peers)


def _peer(ask: _Asker, handle: Any, link: int) -> str | None:
    # 2: a switch; 0: a GPU.
    kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    if kind == 2:
        return SWITCH
    remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    return pci_address(_text(getattr(remote, "busId", None)))


def _instances(ask: _Asker, handle: Any) -> Iterator[Instance]:
    most = _count(ask("nvmlDeviceGetMaxMigDeviceCount", handle)) or 0
    place = 0
    for index in range(min(most, 64)):
        asked = _Asker(ask.library)
        device = asked("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if device is None:
            continue
        name = _text(asked("nvmlDeviceGetName", device)) or ""
        profile = name.rpartition(" MIG ")[2] if " MIG " in name else None
        yield Instance(
            index=place,
            gpu_instance=_count(asked("nvmlDeviceGetGpuInstanceId", device)),
            compute_instance=_count(asked("nvmlDeviceGetComputeInstanceId", device)),
            uuid=_text(asked("nvmlDeviceGetUUID", device)),
            profile=profile,
            memory_bytes=_memory(asked, device),
            processes=_processes(asked, device),
        )
        place += 1


def _processes(ask: _Asker, handle: Any) -> tuple[Process, ...] | None:
    computing = _running(ask, "Compute", handle)
    if computing is None:
        return None
    drawing = _running(ask, "Graphics", handle) or []
    found = [_process(one, compute=True) for one in computing]
    known = {process.pid for process in found}
    found.extend(_process(one, compute=False) for one in drawing if one.pid not in known)
    return tuple(found)


def _running(ask: _Asker, kind: str, handle: Any) -> Any:
    """By the newest of the functions that this driver has."""
    for version in ("_v3", "_v2", ""):
        found = ask(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
        if found is not None or ask.code != _FUNCTION_NOT_FOUND:
            return found
    return None


def _process(one: Any, *, compute: bool) -> Process:
    instance = getattr(one, "gpuInstanceId", None)
    return Process(
        pid=_count(one.pid) or None,
        compute=compute,
        gpu_instance=instance if isinstance(instance, int) and instance < 0xFFFFFFFF else None,
    )


def _memory(ask: _Asker, handle: Any) -> int | None:
    total = getattr(ask("nvmlDeviceGetMemoryInfo", handle), "total", None)
    # 0 is said of cards that share the CPU's memory.
    return total if isinstance(total, int) and 0 < total < _MOST_BYTES else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value.strip()[:500] or None if isinstance(value, str) else None


def _pci_id(value: Any) -> str | None:
    number = _count(value)
    return f"{number & 0xFFFF:04x}:{number >> 16 & 0xFFFF:04x}" if number else None
