"""`roost ctl cordon`, `drain`, `uncordon`: keep work off a node, and let it come again."""

import click

from roost.cli.client import part
from roost.cli.output import say
from roost.cli.session import Session, session


@click.command("cordon")
@click.argument("node")
@click.option("--reason", metavar="TEXT", help="Shown wherever the node is turned down.")
@session
def cordon(run: Session, node: str, *, reason: str | None) -> None:
    """Place nothing new on a node; what runs there stays.

    \b
    Example:
      roost ctl cordon gpu-a --reason "fan failure"
    """
    answer = run.client.post(f"/api/v1/nodes/{part(node)}/cordon", {"reason": reason})
    if run.as_json:
        run.json(answer)
        return
    say(f"{node} is cordoned: nothing new goes there (back: roost ctl uncordon {node})")


@click.command("drain")
@click.argument("node")
@click.option("--reason", metavar="TEXT", help="Shown wherever the node is turned down.")
@session
def drain(run: Session, node: str, *, reason: str | None) -> None:
    """Place nothing new on a node and move what runs there to others.

    \b
    Example:
      roost ctl drain gpu-a --reason "new fans"
    """
    answer = run.client.post(f"/api/v1/nodes/{part(node)}/drain", {"reason": reason})
    if run.as_json:
        run.json(answer)
        return
    say(f"{node} is draining: its replicas move (watch: roost ctl node {node})")


@click.command("uncordon")
@click.argument("node")
@click.option("--reason", metavar="TEXT", help="Kept with the event.")
@session
def uncordon(run: Session, node: str, *, reason: str | None) -> None:
    """Place on a node again.

    \b
    Example:
      roost ctl uncordon gpu-a
    """
    told = None if reason is None else {"reason": reason}
    answer = run.client.post(f"/api/v1/nodes/{part(node)}/uncordon", told)
    if run.as_json:
        run.json(answer)
        return
    say(f"{node} takes new replicas again")
