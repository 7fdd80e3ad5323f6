"""A gateway process: listens, follows the server, watches the clock, and stops in order."""

import asyncio
import gc
import random
import signal

from roost.errors import Unusable
from roost.gateway.accounts import Log
from roost.gateway.follower import Follower
from roost.gateway.monitor import Monitor, State
from roost.gateway.options import STDERR, Options, listening, port_of, tell_where
from roost.gateway.serving import Serving


class Gateway:
    """A gateway of one process."""

    def __init__(self, options: Options, *, log_fd: int = STDERR) -> None:
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.log = Log(log_fd)
        self.serving = Serving(
            limits=options.limits,
            log=self.log,
            rng=rng,
            tls=options.tls,
            cors_origins=options.cors_origins,
        )
        self.table = self.serving.table
        self.context = self.serving.context
        self.clients = self.serving.clients
        self.sweep = self.serving.sweep
        self.hurry = self.serving.hurry
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

    async def start(self) -> None:
        """Load the last snapshot, listen, and follow the server."""
        options = self._options
        self.follower.load()
        self._server = await listening(
            self.serving.listen(options.host, options.port), options.host, options.port, "--port"
        )
        self._monitor = await listening(
            Monitor(self).serve(options.metrics_host, options.metrics_port),
            options.metrics_host,
            options.metrics_port,
            "--metrics-port",
        )
        self._tasks = [
            self._loop.create_task(self.follower.run()),
            self._loop.create_task(self.serving.run_sweeps()),
        ]
        tell_where(options, self.port, self.metrics_port)
        self.log.say("gateway.listening", port=self.port, metrics_port=self.metrics_port)

    @property
    def port(self) -> int:
        """The port clients use."""
        return port_of(self._server)

    @property
    def metrics_port(self) -> int:
        """The port for /metrics and the health paths."""
        return port_of(self._monitor)

    async def state(self) -> State:
        """For the metrics port."""
        return State(
            counts=self.serving.counts(),
            version=self.table.version,
            snapshot_age=self.follower.snapshot_age,
            workers=1,
        )

    def why_not_healthy(self) -> str | None:
        """For the metrics port: it answers, so it is."""
        return None

    def why_not_ready(self) -> str | None:
        """For the metrics port."""
        if self.context.draining:
            return "stopping"
        return "no routes yet" if self.table.version is None else None

    async def stop(self) -> None:
        """Take nothing new, let what is in flight finish in its time, then go."""
        if self._server is not None:
            self._server.close()
        await self.serving.finish(self._options.limits.drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._monitor is not None:
            self._monitor.close()
        await self.serving.close()
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


async def serve(options: Options) -> None:
    """Run a gateway of one process until SIGTERM or SIGINT."""
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
    settle_memory()
    await stop.wait()
    await gateway.stop()


def settle_memory() -> None:
    """What is here now stays for good: later collections need not look at it."""
    gc.collect()
    gc.freeze()
    # Requests leave few cycles behind, so they are looked for less often.
    gc.set_threshold(20_000, 20, 20)
