"""What a source of GPU facts says of one card, before anybody judges it; `None`: it did not say."""

import re
from dataclasses import dataclass, field
from typing import Final

MIB: Final = 1024 * 1024
SWITCH: Final = "switch"
"""The peer of an NVLink that ends at an NVSwitch."""
MOST_CARDS: Final = 512
_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process with a context on a card."""

    pid: int | None
    """In whatever pid namespace the driver counts."""
    compute: bool = True
    """False: known to draw only, as X and Wayland do."""
    name: str | None = None
    gpu_instance: int | None = None
    """The MIG instance it is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What speaks for or against a card's health."""

    answers: bool = False
    """It gave a live reading: memory in use, temperature, clocks."""
    lost: str | None = None
    """How the driver says that the card is not there any more."""
    uncorrectable_ecc: int | None = None
    """Since the driver was loaded (volatile)."""
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    page_retirement_pending: bool | None = None
    repair_pending: bool | None = None
    recovery_action: str | None = None
    """What the driver asks for: `GPU Reset`, `Node Reboot`."""
    fabric_state: str | None = None
    """Of the NVSwitch fabric: `Completed`, `In Progress`, `Not Started`; None: there is none."""
    fabric_status: str | None = None
    fabric_ill: str | None = None
    """What the fabric's own health says is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A MIG device of a card."""

    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    uuid: str | None = None
    profile: str | None = None
    """`1g.10gb`; None: it could not be told."""
    memory_bytes: int | None = None
    uncorrectable_ecc: int | None = None
    processes: tuple[Process, ...] | None = None
    """Its own list, where the source has one; else they are in the card's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card as its source described it."""

    index: int
    product: str | None = None
    uuid: str | None = None
    pci_address: str | None = None
    pci_id: str | None = None
    """`10de:2330`."""
    memory_bytes: int | None = None
    """None for memory shared with the CPU: it is main memory, and counted there."""
    mig: bool | None = None
    instances: tuple[Instance, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    processes: tuple[Process, ...] | None = None
    nvlinks: frozenset[str] | None = None
    """PCI addresses its NVLinks end at, or `SWITCH`; empty: known to have none."""
    clique: str | None = None
    """The NVLink fabric it is registered in: GPUs with an equal one reach each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """All that one source said; `cards` None: it is there and does not work."""

    cards: tuple[Card, ...] | None
    driver: str | None = None
    problems: tuple[str, ...] = ()


def pci_address(text: str | None) -> str | None:
    """As sysfs spells it: `00000000:1A:00.0` is `0000:1a:00.0`."""
    found = re.fullmatch(
        r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", (text or "").strip().lower()
    )
    if found is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def whole(text: str | None) -> int | None:
    """A whole number of sane length, 0 or more."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


def mebibytes(text: str | None) -> int | None:
    """`81559 MiB` as bytes. 0 is what some drivers say for "no memory of its own": not known."""
    number, _, unit = (text or "").strip().partition(" ")
    size = whole(number)
    if not size or size > 1 << 40 or unit != "MiB":
        return None
    return size * MIB
