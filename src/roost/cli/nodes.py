"""`roost ctl nodes`: the fleet, a line a node."""

import click

from roost.cli import room
from roost.cli.output import say, say_table, span
from roost.cli.session import Session, session

COLUMNS = ("NAME", "STATUS", "MEM", "DISK", "GPUS", "AGE", "VERSION")


@click.command("nodes")
@session
def nodes(run: Session) -> None:
    r"""The fleet: what each node has left of what it has.

    MEM and DISK are free/total in GB: memory that no replica claims, and the local filesystem with
    most room. GPUS is class:free/total. AGE is the last report's. `-` was not reported.

    \b
    Examples:
      roost ctl nodes
      roost ctl nodes -o json >fleet.json    # for: roost plan --fleet fleet.json
    """
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
            (
                node["name"],
                room.status(node),
                room.memory(node, held),
                room.disk(node, held),
                room.gpus(node, held),
                span(node.get("last_report_age_s")),
                node.get("agent_version"),
            )
        )
    say_table(COLUMNS, rows)
