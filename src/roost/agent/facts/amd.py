"""The AMD cards in what `rocm-smi` and `amd-smi` printed as JSON, in all versions of both."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from roost.agent.facts.card import MIB, MOST_CARDS, Card, Cards, Evidence, pci_address, whole

MOST_BYTES: Final = 16_000_000
_SILENT: Final = frozenset({"", "n/a", "none", "unknown", "0x1002"})
_PAIR: Final = re.compile(
    r"\(Topology\) Link type between DRM devices (\d{1,3}) and (\d{1,3})", re.IGNORECASE
)


def read(data: bytes) -> Cards:
    """The cards that are described; `cards` None and the problem for what is no such document."""
    if len(data) > MOST_BYTES:
        return _unreadable(f"it has {len(data)} bytes, {MOST_BYTES} are read at most")
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as cause:
        return _unreadable(str(cause))
    if isinstance(document, dict) and isinstance(document.get("gpu_data"), list):
        document = document["gpu_data"]
    if isinstance(document, list):
        cards = [_from_amd_smi(place, one) for place, one in enumerate(_objects(document))]
        return Cards(cards=tuple(cards)) if cards else _unreadable("it describes no GPU")
    if isinstance(document, dict):
        return _rocm_smi(document)
    return _unreadable("it is neither an object nor a list")


def uuid(unique_id: str | None) -> str | None:
    """`GPU-` and the 16 hexadecimal digits of its unique id, as ROCR_VISIBLE_DEVICES has them."""
    found = re.fullmatch(r"(?:0x)?([0-9a-f]{1,16})", (unique_id or "").strip().lower())
    if found is None or not found[1].strip("0"):
        return None
    return f"GPU-{found[1].rjust(16, '0')}"


def _unreadable(why: str) -> Cards:
    return Cards(cards=None, problems=(f"the AMD tool's JSON is not read: {why}",))


def _rocm_smi(document: Mapping[str, Any]) -> Cards:
    found = {
        int(name[4:]): one
        for name, one in document.items()
        if re.fullmatch(r"card[0-9]{1,4}", name) and isinstance(one, dict)
    }
    if not found or len(found) > MOST_CARDS:
        return _unreadable("it describes no GPU" if not found else "it describes too many GPUs")
    system = document.get("system")
    cards = {number: _from_rocm_smi(number, found[number]) for number in sorted(found)}
    if isinstance(system, dict):
        cards = _with_links(cards, system)
    return Cards(
        cards=tuple(cards.values()),
        driver=_said(system, "Driver version") if isinstance(system, dict) else None,
    )


def _from_rocm_smi(number: int, one: Mapping[str, Any]) -> Card:
    device = _said(one, "Device ID", "GPU ID")
    series = _said(one, "Device Name", "Card Series", "Card series", "Market Name")
    vram = whole(_said(one, "VRAM Total Memory (B)"))
    used = whole(_said(one, "VRAM Total Used Memory (B)"))
    return Card(
        index=number,
        product=None if series is None or series.lower().startswith("0x") else series,
        uuid=uuid(_said(one, "Unique ID")),
        pci_address=pci_address(_said(one, "PCI Bus")),
        pci_id=_pci_id(device),
        memory_bytes=vram or None,
        evidence=Evidence(answers=used is not None),
    )


def _with_links(cards: dict[int, Card], system: Mapping[str, Any]) -> dict[int, Card]:
    peers: dict[int, set[str]] = {}
    for name, kind in system.items():
        pair = _PAIR.fullmatch(name)
        if pair is None:
            continue
        one, other = int(pair[1]), int(pair[2])
        if one not in cards or other not in cards or one == other:
            continue
        for here, there in ((one, other), (other, one)):
            ends = peers.setdefault(here, set())
            address = cards[there].pci_address
            if kind == "XGMI" and address is not None:
                ends.add(address)
    return {
        number: replace(card, nvlinks=frozenset(peers[number])) if number in peers else card
        for number, card in cards.items()
    }


def _from_amd_smi(place: int, one: Mapping[str, Any]) -> Card:
    asic, bus, vram = (_object(one, key) for key in ("asic", "bus", "vram"))
    usage, ecc = _object(one, "mem_usage"), _object(one, "ecc")
    name = _said(asic, "market_name") or _said(_object(one, "board"), "product_name")
    number = one.get("gpu")
    bad = ecc.get("total_uncorrectable_count")
    return Card(
        index=number if isinstance(number, int) and 0 <= number < MOST_CARDS else place,
        product=name,
        uuid=uuid(_said(asic, "asic_serial")),
        pci_address=pci_address(_said(bus, "bdf") or _said(one, "bdf")),
        pci_id=_pci_id(_said(asic, "device_id")),
        memory_bytes=_size(vram.get("size")) or _size(usage.get("total_vram")),
        evidence=Evidence(
            answers=_size(usage.get("used_vram")) is not None or bool(usage),
            uncorrectable_ecc=bad if isinstance(bad, int) and 0 <= bad < 1 << 62 else None,
        ),
    )


def _size(value: Any) -> int | None:
    """`{"value": 196592, "unit": "MB"}` or `"196592 MB"`: AMD's MB are 2^20 bytes."""
    if isinstance(value, dict):
        value = f"{value.get('value')} {value.get('unit')}"
    number, _, unit = value.partition(" ") if isinstance(value, str) else ("", "", "")
    size = whole(number)
    if not size or size > 1 << 40 or unit not in {"MB", "MiB"}:
        return None
    return size * MIB


def _said(one: Mapping[str, Any], *names: str) -> str | None:
    for name in names:
        value = one.get(name)
        if isinstance(value, str) and value.strip().lower() not in _SILENT:
            return value.strip()[:500]
    return None


def _object(one: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = one.get(name)
    return found if isinstance(found, dict) else {}


def _objects(document: list[Any]) -> Iterator[Mapping[str, Any]]:
    return (one for one in document[:MOST_CARDS] if isinstance(one, dict) and "gpu" in one)


def _pci_id(device: str | None) -> str | None:
    found = re.fullmatch(r"0x([0-9a-f]{4})", (device or "").lower())
    return f"1002:{found[1]}" if found else None
