"""Which RDMA adapters (HCAs) this machine has, which can be used, and on which fabric each is."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from roost.agent.facts.card import pci_address, whole
from roost.agent.facts.small_files import entries, said
from roost.domain.fabric import FabricAttachment, FabricName, Hca, HcaName, HcaPort

MOST_HCAS: Final = 256
MOST_PORTS: Final = 64
_MOST_SHOWN: Final = 200
_INFINIBAND: Final = "InfiniBand"
_ACTIVE: Final = "ACTIVE"
_DEFAULT_PREFIX: Final = 0xFE80_0000_0000_0000
"""What every subnet has that nobody gave a prefix: it tells no two of them apart."""


def read(
    root: Path, named: Mapping[str, Sequence[str]]
) -> tuple[tuple[FabricAttachment, ...] | None, tuple[Hca, ...] | None, list[str]]:
    """The fabrics this node is on, its adapters, and problems; None: not known.

    `named` is the operator's: fabric to names or globs of adapters.
    """
    place = root / "sys/class/infiniband"
    if not (root / "sys/class").is_dir():
        return None, None, ["fabrics are not known: there is no /sys/class"]
    if not place.exists():
        attached, problems = attach((), named)
        return attached, (), problems
    try:
        names = sorted(entry.name for entry in place.iterdir())
    except OSError as cause:
        return None, None, [f"fabrics are not known: {cause}"]
    hcas = tuple(_hca(place / name) for name in names[:MOST_HCAS])
    attached, problems = attach(hcas, named)
    return attached, hcas, problems


def attach(
    hcas: Sequence[Hca], named: Mapping[str, Sequence[str]]
) -> tuple[tuple[FabricAttachment, ...], list[str]]:
    """Each usable adapter on at most one fabric.

    A named one is on the first fabric that names it, and usable when any port is active: whether
    its link is InfiniBand, Ethernet (RoCE) or another kind, the operator knows. One that nobody
    named is on the fabric of its InfiniBand subnet, if that has a prefix of its own, else on none.
    """
    found: dict[str, list[HcaName]] = {}
    problems: list[str] = []
    unnamed: list[str] = []
    for hca in sorted(hcas, key=lambda one: _natural(one.name)):
        fabric = _named(hca.name, named)
        if fabric is not None:
            if any(port.active for port in hca.ports):
                found.setdefault(fabric, []).append(hca.name)
            continue
        active = [port for port in hca.ports if port.active and port.link_layer == _INFINIBAND]
        if not active:
            continue
        prefixes = {port.subnet_prefix for port in active} - {None}
        if len(prefixes) == 1:
            found.setdefault(f"ib-{prefixes.pop()}", []).append(hca.name)
        else:
            unnamed.append(hca.name)
    if unnamed:
        problems.append(
            f"{', '.join(unnamed)}: InfiniBand is active and the fabric has no name, so no replica "
            f"spans nodes over it; name it: --fabric ib0={','.join(unnamed)}"
        )
    there = {hca.name for hca in hcas}
    problems.extend(
        f"fabric {name} names {pattern}, which this machine does not have"
        for name, patterns in named.items()
        for pattern in patterns
        if not any(fnmatch.fnmatchcase(hca, pattern) for hca in there)
    )
    return tuple(
        FabricAttachment(name=FabricName(name), hcas=tuple(found[name])) for name in sorted(found)
    ), problems


def parse_state(text: str | None) -> str | None:
    """`4: ACTIVE`, `5: LinkUp`: the word."""
    found = re.fullmatch(r"\s*\d{1,3}:\s*(\S{1,40})\s*", text or "")
    return found[1] if found else None


def parse_gid_prefix(text: str | None) -> str | None:
    """The subnet prefix of `fec0:0000:0000:0007:…` if somebody set one."""
    groups = (text or "").strip().split(":")
    if len(groups) != 8 or not all(re.fullmatch(r"[0-9a-fA-F]{1,4}", group) for group in groups):
        return None
    prefix = int("".join(group.rjust(4, "0") for group in groups[:4]), 16)
    return f"{prefix:016x}" if prefix not in {0, _DEFAULT_PREFIX} else None


def parse_rate(text: str | None) -> float | None:
    """`400 Gb/sec (4X NDR)`: 400."""
    found = re.match(r"\s*(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text or "")
    return float(found[1]) if found else None


def _hca(place: Path) -> Hca:
    numbers = sorted(
        number
        for entry in entries(place / "ports")
        if (number := whole(entry.name)) is not None and number > 0
    )
    try:
        address = pci_address((place / "device").resolve().name)
    except (OSError, RuntimeError):
        address = None
    return Hca(
        name=HcaName(place.name),
        ports=tuple(_port(place / "ports" / str(n), n) for n in numbers[:MOST_PORTS]),
        kind=said(place / "hca_type", most=_MOST_SHOWN),
        firmware=said(place / "fw_ver", most=_MOST_SHOWN),
        node_guid=said(place / "node_guid", most=_MOST_SHOWN),
        pci_address=address,
        numa_node=whole(said(place / "device/numa_node")),
    )


def _port(place: Path, number: int) -> HcaPort:
    link_layer = said(place / "link_layer", most=_MOST_SHOWN)
    return HcaPort(
        number=number,
        active=parse_state(said(place / "state")) == _ACTIVE,
        state=parse_state(said(place / "state")),
        physical_state=parse_state(said(place / "phys_state")),
        rate_gbps=parse_rate(said(place / "rate")),
        link_layer=link_layer,
        subnet_prefix=parse_gid_prefix(said(place / "gids/0"))
        if link_layer == _INFINIBAND
        else None,
    )


def _named(hca: str, named: Mapping[str, Sequence[str]]) -> str | None:
    for name, patterns in named.items():
        if any(fnmatch.fnmatchcase(hca, pattern) for pattern in patterns):
            return name
    return None


def _natural(name: str) -> list[tuple[int, str]]:
    """`mlx5_9` before `mlx5_10`."""
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part)
            for part in re.split(r"([0-9]{1,9})", name)]  # fmt: skip
