"""`roost up`: server, agent and gateway on this machine, in the foreground."""

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from roost.agent.facts.reach import Reach
from roost.cli.client import default_directory
from roost.errors import Unusable
from roost.formats.fleet import parse_fleet
from roost.run.fleet import MOST_PROCESSES, allow_files
from roost.run.stack import Options, Stack, Stopped
from roost.run.unseen import Unseen

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="ROOST_DIR",
    help="Where state is kept. Default: /var/lib/roost, or ~/.local/state/roost.",
)


@click.command()
@directory_option
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Written (JSON, 0600) when everything listens; removed at the end.",
)
@click.option(
    "--catalog",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Apply this catalog once everything listens.",
)
@click.option(
    "--model-dir",
    "model_dirs",
    multiple=True,
    type=Unseen(),
    help="Where sources that are not absolute paths are found. May be repeated.",
)
@click.option("--allow-command", is_flag=True, help="Let catalogs run commands (engine: command).")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes of the gateway that serve.",
)
@click.option(
    "--port-base",
    type=click.IntRange(1024, 65000),
    help="First port; without it 7400, 7480 and 7490, or the next free ones.",
)
@click.option(
    "--fake-fleet",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Serve from the made-up nodes of this fleet file instead of this machine.",
)
@click.option(
    "--engines",
    type=click.Choice(["in-process", "processes"]),
    default="in-process",
    show_default=True,
    help=f"Of made-up nodes: processes, {MOST_PROCESSES} at most, or none of their own.",
)
def up(
    directory: Path | None,
    ready_file: Path | None,
    catalog: Path | None,
    model_dirs: tuple[Path, ...],
    allow_command: bool,
    workers: int,
    port_base: int | None,
    fake_fleet: Path | None,
    engines: str,
) -> None:
    """Serve models from this machine: server, agent and gateway, until Ctrl-C.

    \b
    Example:
      roost up --model-dir ~/models --catalog catalog.yaml
    """
    nodes = 1 if fake_fleet is None else count_nodes(fake_fleet)
    if fake_fleet is not None:
        # The server's connections are as many as the fleet's.
        allow_files(nodes)
    options = Options(
        dir=(directory or default_directory()).absolute(),
        model_dirs=present(model_dirs),
        allow_command=allow_command,
        workers=workers,
        port_base=port_base,
        ready_file=ready_file,
        fake_fleet=fake_fleet,
        nodes=nodes,
        engines=engines,
    )
    with Stack(options=options, say=say) as stack:
        try:
            stack.start()
        except Stopped:
            return
        if catalog is not None:
            apply(stack, catalog)
        say(f"api      {stack.api}")
        say(f"gateway  {stack.gateway}/v1")
        say(f"metrics  {stack.api}/metrics  {stack.metrics}/metrics")
        say(f"state    {options.dir}   (logs in {options.dir / 'logs'})")
        say(f"try      ROOST_DIR={shlex.quote(str(options.dir))} roost ctl nodes")
        stack.serve()
        say("stopping: requests in flight finish, then the engines stop (Ctrl-C again to hurry)")


def count_nodes(fleet: Path) -> int:
    """Of a fleet file; raises `Unusable` with its problems."""
    try:
        text = fleet.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"cannot read {fleet}: {error}") from error
    nodes = len(parse_fleet(text, filename=str(fleet)).fleet.nodes)
    if not nodes:
        raise Unusable(f"{fleet} has no nodes", hint="roost fleet generate --nodes 50 makes some")
    return nodes


def apply(stack: Stack, catalog: Path) -> None:
    """Apply a catalog file; raises `Unusable` with its problems."""
    try:
        text = catalog.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"cannot read {catalog}: {error}") from error
    stack.client().apply(text, filename=str(catalog))


def present(directories: Sequence[Path]) -> tuple[Path, ...]:
    """The directories; one on a mount that does not answer is taken, as its agent will say so."""
    reach = Reach()
    try:
        for directory in directories:
            there = reach.exists(str(directory))
            if there is False:
                raise Unusable(
                    f"--model-dir {directory}: there is no such directory",
                    hint=f"make it (mkdir -p {shlex.quote(str(directory))}), or name another",
                )
            if there and directory.is_file():
                raise Unusable(
                    f"--model-dir {directory} is a file",
                    hint=f"name the directory it is in: --model-dir "
                    f"{shlex.quote(str(directory.parent))}",
                )
    finally:
        reach.close()
    return tuple(directories)


def say(line: str) -> None:
    """One line for whoever started it, at once; nobody need be there to read it."""
    with contextlib.suppress(OSError):
        click.echo(line)
