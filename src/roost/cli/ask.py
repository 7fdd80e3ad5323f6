"""`roost ctl plan`: where a catalog's replicas would go in the running fleet, changing nothing."""

import click

from roost.cli.explain import decisions_as_text
from roost.cli.files import read_text
from roost.cli.output import say
from roost.cli.session import Session, session

EXIT_UNPLACEABLE = 4


@click.command("plan")
@click.option("-f", "--file", required=True, metavar="FILE", help="The catalog; - is stdin.")
@click.option(
    "--all", "all_nodes", is_flag=True, help="A line for every node that was turned down."
)
@click.option("--brief", is_flag=True, help="JSON: without the rejected nodes; counts stay.")
@session
def plan(run: Session, *, file: str, all_nodes: bool, brief: bool) -> int:
    """Where a catalog's replicas would go, asked of the running server; nothing is changed.

    Exit status 4: some fit nowhere. Without a server, from a saved fleet: roost plan.

    \b
    Example:
      roost ctl plan -f catalog.yaml
    """
    text, name = read_text(file)
    answer = run.client.plan(text, filename=name, brief=brief)
    if run.as_json:
        run.json(answer)
    else:
        say(decisions_as_text(answer, all_nodes=all_nodes))
    unplaceable = any(told["outcome"] == "unplaceable" for told in answer["decisions"])
    return EXIT_UNPLACEABLE if unplaceable else 0
