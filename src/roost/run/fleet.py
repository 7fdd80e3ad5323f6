"""`roost fleet`: fleets that nobody has, to plan on and to run."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path

import click

from roost.cli.files import read_text
from roost.formats.fleet import fleet_to_json, parse_fleet
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


@fleet.command("run")
@click.argument("file", metavar="FLEET")
@click.option("--server", required=True, help="The server's URL, http://server:7400.")
@click.option(
    "--token-file",
    required=True,
    type=click.Path(path_type=Path),
    help="A join token that is good for every node.",
)
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the nodes keep who they are.",
)
def run(file: str, server: str, token_file: Path, directory: Path) -> None:
    """Be all nodes of a fleet file to a server, with engines that answer without a model.

    The engines listen in 127.0.0.0/8: server and gateway have to be on this machine.

    \b
    Example:
      roost fleet run fleet.json --server http://127.0.0.1:7400 --token-file token --dir nodes
    """
    # Late: `generate` needs none of it.
    from roost.testing.fake_fleet import FakeFleet

    text, name = read_text(file)
    parsed = parse_fleet(text, filename=name)

    async def work() -> None:
        task = asyncio.ensure_future(
            FakeFleet(
                fleet=parsed.fleet, url=server, directory=directory, token_file=token_file
            ).run()
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(work())
