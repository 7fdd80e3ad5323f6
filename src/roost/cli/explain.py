"""`roost ctl explain MODEL`: why its replicas are where they are, or nowhere."""

import click

from roost.cli.client import part
from roost.cli.output import say, seconds_since, span
from roost.cli.replicas import cause
from roost.cli.session import Session, session


@click.command("explain")
@click.argument("model")
@click.option(
    "--all", "all_nodes", is_flag=True, help="A line for every node that was turned down."
)
@session
def explain(run: Session, model: str, *, all_nodes: bool) -> None:
    """Why a model's replicas are where they are: the verdict, every profile tried, every node.

    \b
    Example:
      roost ctl explain coder
    """
    answer = run.client.get(f"/api/v1/explain/{part(model)}")
    if run.as_json:
        run.json(answer)
        return
    for replica in answer.get("replicas") or ():
        say(_standing(replica))
    decisions = answer.get("decisions") or []
    if not decisions:
        if not answer.get("replicas"):
            say(f"{model} wants no replicas")
        return
    say("")
    say(decisions_as_text({"decisions": decisions}, all_nodes=all_nodes))


def decisions_as_text(answer: dict[str, object], *, all_nodes: bool) -> str:
    """FORMATS §3 for people."""
    from roost.formats.decision import decisions_from_json
    from roost.placement.explain import explain as tell

    return tell(decisions_from_json(answer), all_nodes=all_nodes)


def _standing(replica: dict[str, object]) -> str:
    """One replica in one line: `coder-0 is ready on gpu-a by profile h100, for 5m`."""
    said = f"{replica['replica']} is {replica.get('state')}"
    shards = replica.get("shards")
    if isinstance(shards, list) and shards:
        said += " on " + ", ".join(dict.fromkeys(str(shard["node"]) for shard in shards))
    if replica.get("profile"):
        said += f" by profile {replica['profile']}"
    ago = span(seconds_since(replica.get("since")))
    if ago:
        said += f", for {ago}"
    why = cause(replica)
    return f"{said}: {why}" if why else said
