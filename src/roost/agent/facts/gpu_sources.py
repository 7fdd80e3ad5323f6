"""Where facts about GPUs come from on this machine: the driver's library, /sys, or files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roost.agent.facts import amd, amd_sysfs, nvidia_xml, nvml, topology
from roost.agent.facts.card import Cards
from roost.agent.facts.small_files import entries, word

_NVIDIA: Final = "10de"
_SIGNS: Final = ("proc/driver/nvidia", "sys/module/nvidia", "dev/nvidiactl", "dev/dxg")
"""Of NVIDIA's driver; the last is WSL's."""
_MOST_BYTES: Final = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the operator said: files instead of the driver, where they are named."""

    root: Path = Path("/")
    nvidia_smi_xml: Path | None = None
    nvidia_smi_topo: Path | None = None
    amd_smi_json: Path | None = None
    """What `amd-smi` or `rocm-smi` printed."""
    graphics_take_cards: bool = False
    """Whether a process that only draws makes a card taken."""


class Source:
    """The sources of one agent; NVML stays open between readings."""

    def __init__(self, sources: Sources, *, library: Callable[[], Any] | None = None) -> None:
        self._sources = sources
        self._library_given = library is not None
        self._nvml = nvml.Session(library or nvml.load)

    def read(self) -> tuple[list[Cards], topology.Matrix | None, list[str]]:
        """NVIDIA's cards, AMD's, the matrix of NVIDIA's links, and all problems."""
        said = [self._nvidia(), self._amd()]
        problems = [problem for cards in said for problem in cards.problems]
        matrix, unread = self._matrix()
        return said, matrix, problems + unread

    def _nvidia(self) -> Cards:
        if self._sources.nvidia_smi_xml is not None:
            return _from_file(self._sources.nvidia_smi_xml, nvidia_xml.read)
        root = self._sources.root
        sign = next((name for name in _SIGNS if (root / name).exists()), None)
        if self._library_given or root == Path("/"):
            return self._by_nvml(root, sign)
        if sign is None and self._sources.amd_smi_json is None and not (root / "sys").is_dir():
            return _unknown("there is no /sys")
        if sign is None:
            return Cards(cards=())
        hint = "give what nvidia-smi -q -x printed there: --nvidia-smi-xml FILE"
        return _unknown(f"/{sign} is there, and NVML is not read under a root path; {hint}")

    def _by_nvml(self, root: Path, sign: str | None) -> Cards:
        there = sign is not None or _on_pci(root)
        if not (self._library_given or there):
            return Cards(cards=())
        try:
            return self._nvml.read()
        except nvml.Failed as cause:
            # A library without a driver, on a machine without a card.
            if cause.code == nvml.NO_DRIVER and not there:
                return Cards(cards=())
            if cause.code == nvml.NO_LIBRARY and sign is None:
                problem = "this machine has NVIDIA cards and no driver for them"
                return Cards(cards=(), problems=(problem,) if there else ())
            return _unknown(f"NVML does not work: {cause.message}")

    def _amd(self) -> Cards:
        if self._sources.amd_smi_json is not None:
            return _from_file(self._sources.amd_smi_json, amd.read)
        return amd_sysfs.read(self._sources.root)

    def _matrix(self) -> tuple[topology.Matrix | None, list[str]]:
        path = self._sources.nvidia_smi_topo
        if path is None:
            return None, []
        try:
            text = _bytes(path).decode("utf-8", "replace")
        except OSError as cause:
            return None, [f"NVLink is not known: {path} cannot be read: {cause.strerror}"]
        matrix = topology.parse_matrix(text)
        if matrix is None:
            return None, [f"NVLink is not known: {path} has no table of nvidia-smi topo -m"]
        return matrix, []


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


def _on_pci(root: Path) -> bool:
    """Whether a display or 3D controller of NVIDIA's is on the bus, driver or not."""
    return any(
        word(device / "vendor") == _NVIDIA and (word(device / "class") or "").startswith("03")
        for device in entries(root / "sys/bus/pci/devices")
    )
