"""`roost plan`: what the scheduler would decide, from a catalog and a fleet file, offline."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from roost.cli.files import read_text
from roost.cli.output import note, say_error
from roost.errors import Unusable
from roost.garbage import uncollected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.domain.model import Catalog
    from roost.formats.fleet import ParsedFleet
    from roost.placement.decision import Decision

T = TypeVar("T")

EXIT_UNPLACEABLE = 4


@click.command("plan")
@click.option("--fleet", "fleet_file", required=True, metavar="FILE", help="The fleet; - is stdin.")
@click.option(
    "--catalog", "catalog_file", required=True, metavar="FILE", help="The catalog; - is stdin."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
@click.option("--all", "all_nodes", is_flag=True, help="Text: a line for every rejected node.")
@click.option("--brief", is_flag=True, help="JSON: without the rejected nodes; counts stay.")
def plan(*, fleet_file: str, catalog_file: str, output: str, all_nodes: bool, brief: bool) -> None:
    """Say where every replica of a catalog would go on a fleet, and why, without any server.

    The fleet file is what `roost ctl nodes -o json` prints. Exit status 0: all are placed or kept;
    4: some are unplaceable; 2: a file can't be used.

    \b
    Example:
      roost ctl nodes -o json | roost plan --fleet - --catalog catalog.yaml
    """
    if fleet_file == catalog_file == "-":
        raise click.UsageError("only one of --fleet and --catalog can be read from stdin")
    with uncollected():
        placed = _plan(fleet_file, catalog_file, output, all_nodes=all_nodes, brief=brief)
    if not placed:
        sys.exit(EXIT_UNPLACEABLE)


def _plan(fleet_file: str, catalog_file: str, output: str, *, all_nodes: bool, brief: bool) -> bool:
    """Print the plan; whether every replica has a place."""
    # Late: `roost --help` needs none of this.
    from roost.engines.rules import broken
    from roost.formats.catalog import parse_catalog
    from roost.formats.fleet import parse_fleet
    from roost.placement import plan as decide_all

    def read_catalog() -> "Catalog":
        text, filename = read_text(catalog_file)
        return parse_catalog(text, filename=filename, rules=broken)

    def read_fleet() -> "ParsedFleet":
        text, filename = read_text(fleet_file)
        return parse_fleet(text, filename=filename)

    catalog, parsed = _usable(read_catalog), _usable(read_fleet)
    for warning in parsed.warnings:
        note(f"warning: {warning}")
    decisions = decide_all(catalog, parsed.fleet)
    if output == "json":
        _print_json(decisions, brief=brief)
    else:
        from roost.placement.explain import explain

        click.echo(explain(decisions, all_nodes=all_nodes))
    return all(decision.outcome.value != "unplaceable" for decision in decisions)


def _print_json(decisions: "Sequence[Decision]", *, brief: bool) -> None:
    import msgspec

    from roost.formats.decision import decisions_to_json

    written = msgspec.json.encode(decisions_to_json(decisions, brief=brief))
    click.echo(msgspec.json.format(written, indent=2))


def _usable(read: Callable[[], T]) -> T:
    """What was read, or exit 2 with every problem on stderr."""
    try:
        return read()
    except Unusable as error:
        say_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    plan()
