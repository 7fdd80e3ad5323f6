"""A gateway process: listens, follows the server, watches the clock, and stops in order."""

import asyncio
import gc
import random
import signal
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from roost.errors import Conflict, Unusable
from roost.files import write_private
from roost.gateway.accounts import Accounts, Log
from roost.gateway.certificate import Certificate
from roost.gateway.client import ClientConnection
from roost.gateway.context import Context
from roost.gateway.cors import Cors
from roost.gateway.follower import Follower
from roost.gateway.limits import Limits
from roost.gateway.monitor import GatewayCollector, Monitor
from roost.gateway.table import RoutingTable

_BACKLOG: Final = 2048
_STDERR: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where a gateway listens and whom it follows."""

    directory: Path
    credential_file: Path
    server: str | None = None
    """`None`: as DIR/server/endpoint.json says."""
    host: str = "127.0.0.1"
    port: int = 7480
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 7490
    tls: Certificate | None = None
    """`None`: plain HTTP."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may use it, as `https://host`; `*`: all."""
    limits: Limits = field(default_factory=Limits)


class Gateway:
    """One worker."""

    def __init__(self, options: Options, *, log_fd: int = _STDERR) -> None:
        loop = asyncio.get_running_loop()
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._options = options
        self._loop = loop
        self.log = Log(log_fd)
        self.table = RoutingTable(options.limits, loop.time, rng)
        self.context = Context(
            limits=options.limits,
            table=self.table,
            accounts=Accounts(self.log),
            loop=loop,
            cors=Cors(options.cors_origins) if options.cors_origins else None,
        )
        self.clients: set[ClientConnection] = set()
        self.follower = Follower(
            table=self.table,
            log=self.log,
            directory=options.directory,
            server=options.server,
            credential_file=options.credential_file,
            rng=rng,
        )
        self._server: asyncio.Server | None = None
        self._monitor: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._hurry = False

    async def start(self) -> None:
        """Load the last snapshot, listen, and follow the server."""
        options = self._options
        self.follower.load()
        self._server = await _listen(
            self._loop.create_server(
                lambda: ClientConnection(self.context, self.clients),
                options.host,
                options.port,
                backlog=_BACKLOG,
                ssl=None if options.tls is None else options.tls.context,
            ),
            options.host,
            options.port,
            "--port",
        )
        monitor = Monitor(
            self.context,
            GatewayCollector(
                self.context,
                snapshot_age=self._snapshot_age,
                connections=lambda: len(self.clients),
            ),
        )
        self._monitor = await _listen(
            monitor.serve(options.metrics_host, options.metrics_port),
            options.metrics_host,
            options.metrics_port,
            "--metrics-port",
        )
        self._tasks = [
            self._loop.create_task(self.follower.run()),
            self._loop.create_task(self._sweep()),
        ]
        file = options.directory / "gateway" / "endpoint.json"
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(
            file,
            msgspec.json.encode(
                {
                    "gateway": f"{'http' if options.tls is None else 'https'}://"
                    f"{options.host}:{self.port}",
                    "metrics": f"http://{options.metrics_host}:{self.metrics_port}",
                }
            ),
        )
        self.log.say("gateway.listening", port=self.port, metrics_port=self.metrics_port)

    @property
    def port(self) -> int:
        """The port clients use."""
        return _port(self._server)

    @property
    def metrics_port(self) -> int:
        """The port for /metrics and the health paths."""
        return _port(self._monitor)

    def _snapshot_age(self) -> float | None:
        heard_at = self.follower.heard_at
        return None if heard_at is None else max(0.0, time.time() - heard_at)

    async def _sweep(self) -> None:
        """Look at every deadline a few times a second; no request needs a timer of its own."""
        while True:
            await asyncio.sleep(self._options.limits.sweep_s)
            try:
                self.sweep()
            except Exception as error:  # noqa: BLE001 - without deadlines all would hang in time
                self.log.say("gateway.sweep_failed", cause=repr(error))

    def sweep(self) -> None:
        """Act on the deadlines that have passed."""
        now = self._loop.time()
        for connection in list(self.context.engines):
            if connection.deadline is not None and now >= connection.deadline:
                connection.give_up()
        for client in list(self.clients):
            client.check_time(now)
        self.table.sweep()

    async def stop(self) -> None:
        """Take nothing new, let what is in flight finish in its time, then go."""
        self.context.draining = True
        if self._server is not None:
            self._server.close()
        for client in list(self.clients):
            client.stop()
        self.log.say("gateway.stopping", connections=len(self.clients))
        deadline = self._loop.time() + self._options.limits.drain_s
        while self.clients and not self._hurry and self._loop.time() < deadline:  # noqa: ASYNC110 - for once, at the end
            await asyncio.sleep(0.02)
        for client in list(self.clients):
            client.cut_off()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for model in self.table.models.values():
            for endpoint in model.endpoints:
                endpoint.retire()
        if self._monitor is not None:
            self._monitor.close()
        # Transports close in the loop's next turns.
        await asyncio.sleep(0.01)
        self.log.say("gateway.stopped")
        self.log.close()

    def read_certificate(self) -> None:
        """A renewed one counts for new connections; one that can't be used changes nothing."""
        if self._options.tls is None:
            return
        try:
            self._options.tls.read()
        except Unusable as error:
            self.log.say("gateway.certificate_refused", cause=error.message)
        else:
            self.log.say("gateway.certificate_read")

    def hurry(self) -> None:
        """What is in flight need not finish."""
        self._hurry = True


async def serve(options: Options) -> None:
    """Run one worker until SIGTERM or SIGINT."""
    gateway = Gateway(options)
    await gateway.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        if stop.is_set():
            gateway.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.read_certificate)
    # What is here now stays for good: later collections need not look at it.
    gc.collect()
    gc.freeze()
    # Requests leave few cycles behind, so they are looked for less often.
    gc.set_threshold(20_000, 20, 20)
    await stop.wait()
    await gateway.stop()


def _port(server: asyncio.Server | None) -> int:
    if server is None or not server.sockets:
        return 0
    address: tuple[str, int] = server.sockets[0].getsockname()[:2]
    return address[1]


async def _listen(
    listening: Awaitable[asyncio.Server], host: str, port: int, option: str
) -> asyncio.Server:
    try:
        return await listening
    except OSError as error:
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"give another {option}",
        ) from error
