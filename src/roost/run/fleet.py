"""`roost fleet`: fleets that nobody has, to plan on."""

import json

import click

from roost.formats.fleet import fleet_to_json
from roost.testing.fleet_shapes import SHAPES, make_fleet

_MOST_NODES = 100_000


@click.group("fleet")
def fleet() -> None:
    """Make up a fleet, to plan on one that you do not have.

    \b
    Example:
      roost fleet generate --nodes 200 --shape mixed > fleet.json
    """


@fleet.command("generate")
@click.option("--nodes", type=click.IntRange(1, _MOST_NODES), required=True, help="How many.")
@click.option(
    "--shape", type=click.Choice(list(SHAPES)), default="mixed", show_default=True, help="Of what."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed makes the same fleet."
)
def generate(nodes: int, shape: str, seed: int) -> None:
    """Print a made-up fleet as JSON: what `roost plan --fleet` reads.

    Some of its nodes do not report everything and some of its cards are ill, as in real fleets.

    \b
    Example:
      roost fleet generate --nodes 200 --shape mixed > fleet.json
    """
    click.echo(json.dumps(fleet_to_json(make_fleet(shape, nodes, seed)), indent=1))
