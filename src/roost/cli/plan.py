"""`roost plan`: what the scheduler would decide, from a catalog and a fleet file, offline."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from roost.errors import Unusable

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """
    if fleet_file == catalog_file == "-":
        raise click.UsageError("only one of --fleet and --catalog can be read from stdin")
    # Late: `roost --help` needs none of this.
    from roost.engines.rules import broken
    from roost.formats.catalog import parse_catalog
    from roost.formats.fleet import parse_fleet
    from roost.placement import plan as decide_all

    catalog = _usable(
        lambda: parse_catalog(_read(catalog_file), filename=_called(catalog_file), rules=broken)
    )
    parsed = _usable(lambda: parse_fleet(_read(fleet_file), filename=_called(fleet_file)))
    for warning in parsed.warnings:
        click.echo(f"warning: {warning}", err=True)
    decisions = decide_all(catalog, parsed.fleet)
    if output == "json":
        _print_json(decisions, brief=brief)
    else:
        from roost.placement.explain import explain

        click.echo(explain(decisions, all_nodes=all_nodes))
    if any(decision.outcome.value == "unplaceable" for decision in decisions):
        sys.exit(EXIT_UNPLACEABLE)


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
        for line in error.problems or (error.message,):
            click.echo(line, err=True)
        sys.exit(error.exit_code)


def _read(file: str) -> str:
    try:
        found = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return found.decode("utf-8-sig")
    except OSError as error:
        raise Unusable(f"{file}: {(error.strerror or 'cannot be read').lower()}") from None
    except UnicodeDecodeError as error:
        raise Unusable(f"{_called(file)}: byte {error.start} is not UTF-8 text") from None


def _called(file: str) -> str:
    return "<stdin>" if file == "-" else file


if __name__ == "__main__":
    plan()
