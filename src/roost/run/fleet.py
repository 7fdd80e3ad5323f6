"""`roost fleet`: fleets that nobody has, to plan on, to run, and to let things go wrong in."""

import asyncio
import contextlib
import json
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import click

from roost.cli.client import default_directory
from roost.cli.files import read_text
from roost.errors import Unusable
from roost.formats.fleet import fleet_to_json, parse_fleet
from roost.testing.faults import MEANINGS, Fault, Kind
from roost.testing.fleet_shapes import SHAPES, make_fleet

_MOST_NODES: Final = 100_000
MOST_PROCESSES: Final = 32
_FILES_A_NODE: Final = 5
"""Three connections to the server, a listener, and one request being answered."""
_FILES_BESIDE: Final = 256


@click.group("fleet")
def fleet() -> None:
    """Make up a fleet that you do not have: plan on it, run it, break it.

    \b
    Examples:
      roost fleet generate --nodes 200 --shape mixed > fleet.json
      roost up --fake-fleet fleet.json
      roost fleet fault h100-0001 ecc --gpu 3
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
@click.option(
    "--engines",
    type=click.Choice(["in-process", "processes"]),
    default="in-process",
    show_default=True,
    help="Whether each engine is a process of its own.",
)
@click.option(
    "--most-processes",
    type=click.IntRange(1, 10_000),
    default=MOST_PROCESSES,
    show_default=True,
    help="Engines beyond so many do not start (--engines processes).",
)
def run(
    file: str, server: str, token_file: Path, directory: Path, engines: str, most_processes: int
) -> None:
    """Be all nodes of a fleet file to a server, with engines that answer without a model.

    The engines listen in 127.0.0.0/8: server and gateway have to be on this machine.

    \b
    Example:
      roost fleet run fleet.json --server http://127.0.0.1:7400 --token-file token --dir nodes
    """
    # Late: `generate` needs none of it.
    from roost.testing.fake_fleet import EngineKind, FakeFleet
    from roost.testing.fault_socket import listening

    text, name = read_text(file)
    parsed = parse_fleet(text, filename=name)
    allow_files(len(parsed.fleet.nodes))
    kind: EngineKind = next(one for one in get_args(EngineKind) if one == engines)
    at = directory.absolute()
    at.mkdir(parents=True, exist_ok=True, mode=0o700)
    nodes = FakeFleet(
        fleet=parsed.fleet,
        url=server,
        directory=at,
        token_file=token_file,
        engines=kind,
        most_processes=most_processes,
    )

    async def work() -> None:
        task = asyncio.ensure_future(nodes.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        async with listening(nodes, at):
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(work())


def allow_files(nodes: int) -> None:
    """Let this process and its children open as many files as a fleet needs.

    Raises `Unusable` if the system does not allow so many.
    """
    needed = _FILES_A_NODE * nodes + _FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise Unusable(
                f"{nodes} nodes need {needed} open files, and a process may have {hard} here",
                hint=f"take fewer nodes, or raise the limit as root: ulimit -n {needed}",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


_KINDS: Final = "\n".join(f"  {kind.value:11} {MEANINGS[kind]}" for kind in Kind)

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="ROOST_DIR",
    help="The directory of `roost up` or of `roost fleet run`. Default: as for `roost up`.",
)
_kind = click.Choice([kind.value for kind in Kind])
_gpu = click.option("--gpu", type=click.IntRange(min=0), help="Which card.")
_replica = click.option("--replica", help="Whose engine.")


@fleet.command(
    "fault",
    help=f"""Let something go wrong on a node of the made-up fleet that runs.

    \b
    KIND is one of
    {_KINDS.replace(chr(10), chr(10) + "    ")}

    --gpu names the card and --replica the engine, where a node has several. `roost fleet heal`
    ends it.

    \b
    Examples:
      roost fleet fault h100-0001 ecc --gpu 3
      roost fleet fault cpu-0001 crash-loop
    """,
)
@click.argument("node")
@click.argument("kind", type=_kind, metavar="KIND")
@_gpu
@_replica
@_directory
def fault(
    node: str, kind: str, gpu: int | None, replica: str | None, directory: Path | None
) -> None:
    """Order a fault."""
    from roost.testing.fault_socket import Order, tell

    order = Order(what="fail", node=node, kind=Kind(kind), gpu=gpu, replica=replica)
    _say(tell(directory or default_directory(), order))


@fleet.command("heal")
@click.argument("node")
@click.argument("kind", type=_kind, required=False, metavar="[KIND]")
@_gpu
@_replica
@_directory
def heal(
    node: str,
    kind: str | None,
    gpu: int | None,
    replica: str | None,
    directory: Path | None,
) -> None:
    """End the faults of a node: all, or those of a KIND, a card or a replica.

    A silent node speaks again with the engines it kept; one that was off boots.

    \b
    Example:
      roost fleet heal h100-0001
    """
    from roost.testing.fault_socket import Order, tell

    order = Order(
        what="heal", node=node, kind=None if kind is None else Kind(kind), gpu=gpu, replica=replica
    )
    ended = tell(directory or default_directory(), order)
    _say(ended)
    if not ended:
        click.echo("nothing of that kind was wrong", err=True)


@fleet.command("faults")
@_directory
def faults(directory: Path | None) -> None:
    """List what is wrong on order now, as `roost fleet fault` takes it.

    \b
    Example:
      roost fleet faults
    """
    from roost.testing.fault_socket import Order, tell

    _say(tell(directory or default_directory(), Order(what="list")))


def _say(faults: Sequence[Fault]) -> None:
    for one in faults:
        click.echo(str(one))
