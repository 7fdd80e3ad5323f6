"""`roost ctl node NAME`: everything one node reported, and what is on it."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from roost.cli import room
from roost.cli.client import part
from roost.cli.output import say, say_table, span
from roost.cli.session import Session, session
from roost.domain.units import has_gb


@click.command("node")
@click.argument("name")
@session
def node(run: Session, name: str) -> None:
    """One node with all it reported and what is on it.

    \b
    Example:
      roost ctl node gpu-a
    """
    answer = run.client.get(f"/api/v1/nodes/{part(name)}")
    if run.as_json:
        run.json(answer)
        return
    told = answer.get("node", answer)
    allocations = answer.get("allocations")
    if allocations is None:
        allocations = run.client.get("/api/v1/nodes").get("allocations") or ()
    held = room.held_on(told["name"], allocations)
    lines = [(key, value or "-") for key, value in _facts(told, held)]
    width = max(len(key) for key, _ in lines) + 2
    for key, value in lines:
        say(f"{key:<{width}}{value}")
    for problem in told.get("problems") or ():
        say(f"{'problem':<{width}}{problem}")
    _tables(told, held)


def _facts(told: dict[str, Any], held: Sequence[room.Json]) -> Iterator[tuple[str, str | None]]:
    engines = told.get("engines")
    yield "name", told["name"]
    yield "status", room.status(told)
    if told.get("cordoned") and told.get("cordon_reason"):
        yield "reason", str(told["cordon_reason"])
    age = span(told.get("last_report_age_s"))
    yield "last report", f"{age} ago" if age else None
    yield "agent", told.get("agent_version")
    yield "address", told.get("address")
    yield "host name", told.get("hostname")
    yield "joined", told.get("joined_at")
    yield (
        "labels",
        " ".join(f"{key}={value}" for key, value in sorted((told.get("labels") or {}).items())),
    )
    yield "engines", "not reported" if engines is None else ", ".join(engines) or "none"
    memory = room.memory(told, held)
    yield "memory", f"{memory} GB free" if memory else "not reported"
    fabrics = told.get("fabrics")
    yield (
        "fabrics",
        "not reported"
        if fabrics is None
        else "; ".join(f"{f['name']}: {' '.join(f.get('hcas') or ())}" for f in fabrics) or "none",
    )
    if told.get("gpus") is None:
        yield "gpus", "not reported"
    elif not told["gpus"]:
        yield "gpus", "none"


def _hardware(told: dict[str, Any]) -> None:
    if told.get("gpu_details"):
        say("")
        say_table(
            ("GPU", "PRODUCT", "PCI", "NUMA", "DRIVER", "UUID"),
            [
                (
                    str(card.get("index")),
                    card.get("product"),
                    card.get("pci_address"),
                    _text(card.get("numa_node")),
                    card.get("driver"),
                    card.get("uuid"),
                )
                for card in told["gpu_details"]
            ],
        )
    if told.get("hcas"):
        say("")
        on = {hca: one["name"] for one in told.get("fabrics") or () for hca in one["hcas"]}
        none: list[dict[str, Any]] = [{}]
        ports = [(hca, port) for hca in told["hcas"] for port in hca.get("ports") or none]
        say_table(
            ("HCA", "FABRIC", "PORT", "STATE", "PHYSICAL", "GBIT/S", "LINK", "PCI"),
            [
                (
                    hca.get("name"),
                    on.get(hca.get("name")),
                    _text(port.get("number")),
                    port.get("state"),
                    port.get("physical_state"),
                    None if port.get("rate_gbps") is None else f"{port['rate_gbps']:g}",
                    port.get("link_layer"),
                    hca.get("pci_address"),
                )
                for hca, port in ports
            ],
        )


def _against(card: dict[str, Any]) -> str | None:
    """What speaks against a card: its ill health, and processes of others."""
    said = [card["unhealthy_reason"]] if card.get("unhealthy_reason") else []
    if foreign := card.get("foreign_processes"):
        said.append(f"{foreign} foreign process{'' if foreign == 1 else 'es'}")
    return "; ".join(said) or None


def _tables(told: dict[str, Any], held: Sequence[room.Json]) -> None:
    if told.get("gpus"):
        say("")
        say_table(
            ("GPU", "CLASS", "MEM", "NVLINK", "USED_BY", "WHY"),
            [
                (
                    str(card.get("index")),
                    card.get("class"),
                    _gigabytes(card.get("memory_bytes")),
                    _text(card.get("nvlink_domain")),
                    room.card_state(card, held),
                    _against(card),
                )
                for card in told["gpus"]
            ],
        )
    _hardware(told)
    if told.get("storage"):
        say("")
        say_table(
            ("FILESYSTEM", "KIND", "FREE", "TOTAL", "MOUNTS"),
            [
                (
                    store.get("filesystem"),
                    _kind(store),
                    _gigabytes(store.get("free_bytes")),
                    _gigabytes(store.get("total_bytes")),
                    " ".join(store.get("mounts") or ()),
                )
                for store in told["storage"]
            ],
        )
    if held:
        say("")
        say_table(
            ("REPLICA", "PROFILE", "STATE", "MEM", "DISK", "GPUS"),
            [
                (
                    hold.get("replica"),
                    hold.get("profile"),
                    hold.get("state") or "held",
                    _gigabytes(hold.get("memory_bytes")),
                    _gigabytes(hold.get("disk_bytes")),
                    ",".join(str(index) for index in hold.get("gpus") or ()),
                )
                for hold in held
            ],
        )


def _kind(store: room.Json) -> str:
    """`local` or `shared`; and whether it can be written to, and answers."""
    said = ["shared" if store.get("shared") else "local"]
    if store.get("read_only"):
        said.append("read-only")
    if store.get("stale_since") is not None:
        said.append("not-answering")
    return ",".join(said)


def _gigabytes(size: int | None) -> str | None:
    return None if size is None else has_gb(size)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
