"""`roost ctl fabrics`: the RDMA networks of the fleet, and what is on each."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from roost.cli import room
from roost.cli.output import note, say, say_table
from roost.cli.session import Session, session


@click.command("fabrics")
@session
def fabrics(run: Session) -> None:
    """The named RDMA networks: replicas of several nodes are on nodes of one of them.

    NODES is ready/all. HCAS are usable adapters, GPUS is class:free/total on its ready nodes.
    An adapter's fabric is named by its agent: roost agent --fabric ib0=mlx5_*

    \b
    Example:
      roost ctl fabrics
    """
    answer = run.client.get("/api/v1/nodes")
    nodes = answer["nodes"]
    allocations = answer.get("allocations") or ()
    names = sorted({one["name"] for node in nodes for one in node.get("fabrics") or ()})
    found = [_fabric(name, nodes, allocations) for name in names]
    if run.as_json:
        run.json({"fabrics": found})
        return
    if not found:
        say("no fabrics: no node reports an adapter on one; roost agent --help has --fabric")
    else:
        say_table(
            ("FABRIC", "NODES", "HCAS", "GPUS"),
            [
                (
                    one["name"],
                    f"{one['ready']}/{len(one['nodes'])}",
                    str(one["hcas"]),
                    ",".join(
                        f"{kind}:{count['free']}/{count['total']}"
                        for kind, count in sorted(one["gpus"].items())
                    ),
                )
                for one in found
            ],
        )
    silent = sorted(node["name"] for node in nodes if node.get("fabrics") is None)
    if silent:
        few = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        note(f"not reported by: {few}")


def _fabric(
    name: str, nodes: Sequence[room.Json], allocations: Sequence[room.Json]
) -> dict[str, Any]:
    on = [
        (node, one["hcas"])
        for node in nodes
        for one in node.get("fabrics") or ()
        if one["name"] == name
    ]
    ready = [node for node, _ in on if room.status(node) == "ready"]
    total: Counter[str] = Counter()
    free: Counter[str] = Counter()
    for node in ready:
        held = room.held_on(node["name"], allocations)
        for card in node.get("gpus") or ():
            total[card["class"]] += 1
            free[card["class"]] += room.card_state(card, held) == "free"
    return {
        "name": name,
        "nodes": sorted(node["name"] for node, _ in on),
        "ready": len(ready),
        "hcas": sum(len(hcas) for _, hcas in on),
        "gpus": {kind: {"free": free[kind], "total": total[kind]} for kind in sorted(total)},
    }
