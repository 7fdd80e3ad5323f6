"""The AMD cards as the kernel's compute driver (KFD) and amdgpu describe them in /sys."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roost.agent.facts.amd import uuid
from roost.agent.facts.card import MOST_CARDS, Card, Cards, Evidence, Process, whole
from roost.agent.facts.small_files import entries, said, word

_NAMES: Final = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
_XGMI: Final = 11
"""`CRAT_IOLINK_TYPE_XGMI`: AMD's NVLink."""
_MOST_NAMES: Final = 1_000_000
_MOST_PROCESSES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A GPU in KFD's topology."""

    number: int
    gpu_id: int
    address: str
    xgmi: frozenset[int] | None
    """The nodes its XGMI links end at."""


def read(root: Path) -> Cards:
    """Every card that KFD can compute on, in KFD's order, which is ROCm's."""
    nodes = list(_nodes(root / "sys/class/kfd/kfd/topology/nodes"))
    names = _product_names(root) if nodes else {}
    addresses = {node.number: node.address for node in nodes}
    cards = []
    for index, node in enumerate(nodes[:MOST_CARDS]):
        device = root / "sys/bus/pci/devices" / node.address
        pci = (word(device / "device"), word(device / "revision"))
        links = node.xgmi
        cards.append(
            Card(
                index=index,
                product=said(device / "product_name") or names.get(pci),
                uuid=uuid(word(device / "unique_id")),
                pci_address=node.address,
                pci_id=f"1002:{pci[0]}" if pci[0] else None,
                memory_bytes=whole(said(device / "mem_info_vram_total")) or None,
                evidence=_evidence(device),
                processes=_processes(root / "sys/class/kfd/kfd/proc", node.gpu_id),
                nvlinks=None
                if links is None
                else frozenset(addresses[peer] for peer in links if peer in addresses),
            )
        )
    return Cards(cards=tuple(cards), driver=said(root / "sys/module/amdgpu/version"))


def parse_properties(text: str) -> dict[str, int]:
    """KFD's `name number` lines."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        number = whole(value)
        if number is not None:
            found[name] = number
    return found


def parse_errors(text: str) -> int | None:
    """The uncorrectable ones of `ue: 0` and `ce: 3`."""
    found = re.search(r"^ue:[ \t]*([0-9]{1,18})[ \t]*$", text, re.MULTILINE)
    return int(found[1]) if found else None


def parse_names(text: str) -> dict[tuple[str, str], str]:
    """`744C, C8, AMD Radeon RX 7900 XTX`: device, revision, product."""
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and not line.startswith("#") and parts[2]:
            found[parts[0].lower(), parts[1].lower()] = parts[2]
    return found


def _nodes(place: Path) -> Iterator[_Node]:
    numbers = sorted(n for entry in entries(place) if (n := whole(entry.name)) is not None)
    for number in numbers:
        node = place / str(number)
        gpu_id = whole(said(node / "gpu_id"))
        if not gpu_id:  # 0: a processor
            continue
        known = parse_properties(said(node / "properties") or "")
        location = known.get("location_id")
        if location is None or known.get("vendor_id", 0x1002) != 0x1002:
            continue
        address = (
            f"{known.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:"
            f"{location >> 3 & 0x1F:02x}.{location & 7}"
        )
        yield _Node(number=number, gpu_id=gpu_id, address=address, xgmi=_links(node / "io_links"))


def _links(place: Path) -> frozenset[int] | None:
    found = [parse_properties(said(entry / "properties") or "") for entry in sorted(entries(place))]
    if not any(found):
        return None
    return frozenset(
        link["node_to"] for link in found if link.get("type") == _XGMI and "node_to" in link
    )


def _evidence(device: Path) -> Evidence:
    counts = [
        parse_errors(said(entry) or "")
        for entry in sorted(entries(device / "ras"))
        if entry.name.endswith("_err_count")
    ]
    known = [count for count in counts if count is not None]
    return Evidence(
        answers=whole(said(device / "mem_info_vram_used")) is not None,
        uncorrectable_ecc=sum(known) if known else None,
    )


def _processes(place: Path, gpu_id: int) -> tuple[Process, ...] | None:
    if not place.is_dir():
        return None
    found = []
    for entry in list(entries(place))[:_MOST_PROCESSES]:
        pid = whole(entry.name)
        # A process that opened the driver has this file for each card; what it holds tells.
        if pid and whole(said(entry / f"vram_{gpu_id}")):
            found.append(Process(pid=pid))
    return tuple(sorted(found, key=lambda one: one.pid or 0))


def _product_names(root: Path) -> Mapping[tuple[str | None, str | None], str]:
    for name in _NAMES:
        text = said(root / name, most=_MOST_NAMES)
        if text:
            return {(*key,): what for key, what in parse_names(text).items()}
    return {}
