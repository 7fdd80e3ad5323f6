"""`roost ctl nodes`: the fleet, a line a node; and what is done to one of them."""

import click

from roost.cli import room
from roost.cli.client import part
from roost.cli.cordon import cordon, drain, uncordon
from roost.cli.output import note, say, say_table, span
from roost.cli.session import Session, session, wide_session

COLUMNS = ("NAME", "STATUS", "MEM", "DISK", "GPUS", "AGE", "VERSION")
WIDE = ("SHARED", "ADDRESS")


@click.group("nodes", invoke_without_command=True)
@wide_session
def nodes(run: Session) -> None:
    """The fleet: what each node has left of what it has.

    MEM and DISK are free/total in GB: memory that no replica claims, and the local filesystem with
    most room. GPUS is class:free/total, and how many are unhealthy, hold foreign processes, or are
    stopping. AGE is the last report's. `-` was not reported.
    With -o wide: SHARED, free/total of what other nodes may mount as well, and what the fleet has
    in all, where a file server counts once.

    \b
    Examples:
      roost ctl nodes
      roost ctl nodes -o json >fleet.json    # for: roost plan --fleet fleet.json
    """
    if click.get_current_context().invoked_subcommand:
        return
    answer = run.client.get("/api/v1/nodes")
    if run.as_json:
        run.json(answer)
        return
    if not answer["nodes"]:
        say("no nodes yet: roost ctl token create prints what to run on a machine")
        return
    rows = []
    for node in answer["nodes"]:
        held = room.held_on(node["name"], answer.get("allocations") or ())
        rows.append(
            [
                node["name"],
                room.status(node),
                room.memory(node, held),
                room.disk(node, held),
                room.gpus(node, held),
                span(node.get("last_report_age_s")),
                node.get("agent_version"),
                *([room.shared(node), node.get("address")] if run.wide else []),
            ]
        )
    say_table((*COLUMNS, *WIDE) if run.wide else COLUMNS, rows)
    if run.wide:
        note(room.fleet_disks(answer["nodes"]))


@nodes.command("delete")
@click.argument("name")
@session
def delete(run: Session, name: str) -> None:
    """Forget a node that is gone for good; what it ran is placed elsewhere.

    A node that still reports is refused: stop its agent first.

    \b
    Example:
      roost ctl nodes delete gpu-a
    """
    answer = run.client.delete(f"/api/v1/nodes/{part(name)}")
    if run.as_json:
        run.json(answer)
        return
    say(f"{name} is forgotten: what it ran is placed elsewhere")


nodes.add_command(cordon)
nodes.add_command(drain)
nodes.add_command(uncordon)
