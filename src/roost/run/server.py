"""`roost server`: the control plane alone, on one port."""

import asyncio
import contextlib
import gc
import ipaddress
import json
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import click
import structlog
import uvicorn
import uvloop
from click.core import ParameterSource

from roost.api.app import App
from roost.cli.client import default_directory
from roost.domain.profile import Engine, MetricNames
from roost.errors import Unusable
from roost.files import write_private
from roost.formats.config import read_metrics
from roost.placement import plan
from roost.reconcile.nodes import LeaseRules
from roost.run import settings
from roost.run.database import named_database
from roost.services.reports import Network
from roost.services.server import Server, open_server
from roost.store.database import is_url
from roost.telemetry.logging import LEVELS, Style, log_to_stderr

_PATH: Final = click.Path(path_type=Path)

log = structlog.get_logger("roost.server")


@click.command()
@click.option("--dir", "directory", type=_PATH, envvar="ROOST_DIR", help="Where state is kept.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7400,
    show_default=True,
    help="0: any free one.",
)
@click.option(
    "--database",
    metavar="FILE|URL",
    envvar="ROOST_DATABASE",
    help="SQLite file, inside DIR/server if not absolute, or postgresql://USER@HOST/DATABASE. "
    "Default: roost.db.",
)
@click.option(
    "--database-file",
    type=_PATH,
    metavar="FILE",
    help="A file with that URL in it, which may hold a password if only its owner can read it.",
)
@click.option(
    "--allow-address",
    "allowed",
    multiple=True,
    metavar="IP|NETWORK",
    help="Nodes may say that their engines are reached here; else only at the address they speak "
    "from. May be repeated.",
)
@click.option(
    "--report-interval",
    "interval_s",
    type=click.FloatRange(5, 60),
    default=5.0,
    show_default=True,
    help="Seconds between a node's reports, more in a fleet of thousands; after 4 missed ones "
    "nothing new goes there.",
)
@click.option(
    "--lost-after",
    "lost_after_s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds of silence after which a node's replicas are placed elsewhere; 4 reports at "
    "least.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="ROOST_CONFIG",
    metavar="FILE",
    help="Settings, instead of /etc/roost/roost.toml and ~/.config/roost/roost.toml.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    show_default=True,
)
def server(
    directory: Path | None,
    host: str,
    port: int,
    database: str | None,
    database_file: Path | None,
    allowed: tuple[str, ...],
    interval_s: float,
    lost_after_s: float,
    config: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run the control plane: what is wanted, where it goes, what agents report.

    Engines and gateways go on without it; a server that starts again finds everything in
    DIR/server, or in PostgreSQL. There several servers may be started for one fleet: one leads,
    the others wait without listening until it is gone. SIGTERM ends it.

    \b
    Example:
      roost server --dir /var/lib/roost
    """
    style: Style = (
        "json" if log_format == "json" else "console" if log_format == "console" else "auto"
    )
    log_to_stderr(level=log_level, style=style)
    rules = LeaseRules(interval_s=interval_s, lost_after_s=max(lost_after_s, interval_s * 4))
    networks = tuple(_network(text) for text in allowed)
    source = click.get_current_context().get_parameter_source("database")
    named = named_database(
        database,
        on_command_line=source is ParameterSource.COMMANDLINE,
        file=database_file,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            _serve(
                (directory or default_directory()) / "server",
                host=host,
                port=port,
                database=named,
                rules=rules,
                allowed=networks,
                metrics=read_metrics(*settings.files(config)),
            )
        )


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise Unusable(
            f"--allow-address {text} is neither an IP address nor a network such as 10.0.0.0/8"
        ) from None


async def _serve(
    directory: Path,
    *,
    host: str,
    port: int,
    database: str | None,
    rules: LeaseRules,
    allowed: tuple[Network, ...],
    metrics: Mapping[Engine, MetricNames],
) -> None:
    shared = database is not None and is_url(database)
    with contextlib.ExitStack() as stack:

        def listen() -> socket.socket:
            return stack.enter_context(contextlib.closing(_listen(host, port)))

        # Where other servers may lead, only the one that does listens.
        listening = None if shared else listen()
        opening = asyncio.ensure_future(
            open_server(
                directory,
                plan=plan,
                database=database,
                rules=rules,
                allowed=allowed,
                metrics=metrics,
            )
        )
        told = _told_to_end(opening.cancel)
        try:
            opened = await opening
        except asyncio.CancelledError:
            if not told.is_set():
                raise
            return  # told so while another server led
        try:
            if not told.is_set():
                kept = opened.database if shared else str(directory)
                await _answer(opened, listening or listen(), directory, host=host, kept=kept)
        finally:
            await opened.stop()
            log.info("server.stopped")
    if opened.ledger.deposed.done():
        raise opened.ledger.deposed.result()


async def _answer(
    opened: Server, listening: socket.socket, directory: Path, *, host: str, kept: str
) -> None:
    port = listening.getsockname()[1]
    http = _Http(
        uvicorn.Config(
            App(opened),
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=3,
        )
    )

    def end() -> None:
        opened.end_waits()
        http.end()

    _told_to_end(end)
    opened.ledger.deposed.add_done_callback(lambda _: end())
    opened.start(own_port=port)
    url = f"http://{_written(host)}:{port}"
    write_private(directory / "endpoint.json", json.dumps({"api": url}).encode() + b"\n")
    # What was loaded to start with stays; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    click.echo(f"roost server at {url}, state in {kept}")
    await http.serve(sockets=[listening])


def _told_to_end(act: Callable[[], object]) -> asyncio.Event:
    """Do so at SIGTERM and SIGINT from now on; the event says that one came."""
    told = asyncio.Event()

    def end() -> None:
        told.set()
        act()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    return told


class _Http(uvicorn.Server):
    """Ends when it is told to, and not by signals: uvicorn would end the process by the signal."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Take nothing more; what is being answered is finished."""
        self.should_exit = True
        self._ending.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def main_loop(self) -> None:
        """Uvicorn looks every 100 ms whether it is to end; told so, it need not."""
        tenths = 0
        while not await self.on_tick(tenths):
            tenths += 10
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)


def _listen(host: str, port: int) -> socket.socket:
    """Listening from here on; connections wait until they are served."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Unusable(f"--host {host} is no address of this machine: {error.strerror}") from None
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise Unusable(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}",
            hint="give another with --port",
        ) from None
    listening.setblocking(False)
    return listening


def _written(host: str) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
