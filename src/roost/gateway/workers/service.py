"""A gateway of several workers: it follows the server for them and watches them.

Drawn in docs/explanation/gateway.md.
"""

import asyncio
import dataclasses
import random
import signal

from roost.errors import Unusable
from roost.gateway.accounts import Log
from roost.gateway.follower import Follower
from roost.gateway.monitor import Monitor, State
from roost.gateway.options import STDERR, Options, listening, port_of, tell_where
from roost.gateway.workers.crew import Crew, Work
from roost.gateway.workers.sockets import listen


class SharedGateway:
    """What is one in a gateway of several workers."""

    def __init__(self, options: Options, workers: int) -> None:
        """Listens from here on; raises `Conflict` or `Unusable`: it cannot."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._log = Log(STDERR)
        sockets = listen(options.host, options.port, workers)
        self._port: int = sockets[0][0].getsockname()[1]
        limits = options.limits
        share = dataclasses.replace(limits, buffered_bytes=limits.buffered_bytes // workers)
        self._crew = Crew(
            Work(
                sockets=sockets,
                limits=share,
                tls=None if options.tls is None else options.tls.files,
                cors_origins=options.cors_origins,
            ),
            self._log,
        )
        self._follower = Follower(
            table=self._crew,
            log=self._log,
            directory=options.directory,
            server=options.server,
            credential_file=options.credential_file,
            rng=random.Random(),  # noqa: S311 - spreads load, guards nothing
        )
        self._monitor: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Load the last snapshot, start the workers, and follow the server."""
        options = self._options
        self._monitor = await listening(
            Monitor(self).serve(options.metrics_host, options.metrics_port),
            options.metrics_host,
            options.metrics_port,
            "--metrics-port",
        )
        self._follower.load()
        await self._crew.start()
        self._tasks = [
            self._loop.create_task(self._crew.run()),
            self._loop.create_task(self._crew.tell_confirmed()),
            self._loop.create_task(self._follower.run()),
        ]
        metrics_port = port_of(self._monitor)
        tell_where(options, self._port, metrics_port)
        self._log.say("gateway.listening", port=self._port, metrics_port=metrics_port)

    async def state(self) -> State:
        """For the metrics port."""
        return State(
            counts=await self._crew.counts(),
            version=self._crew.version,
            snapshot_age=self._follower.snapshot_age,
            workers=self._crew.serving,
        )

    def why_not_healthy(self) -> str | None:
        """For the metrics port: without a worker nobody is served."""
        return None if self._crew.serving else "no worker takes connections"

    def why_not_ready(self) -> str | None:
        """For the metrics port."""
        if self._stopping:
            return "stopping"
        if self._crew.version is None:
            return "no routes yet"
        return self.why_not_healthy()

    async def stop(self) -> None:
        """Take nothing new, let what is in flight finish in its time, then go."""
        self._stopping = True
        await self._crew.stop(self._options.limits.drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._monitor is not None:
            self._monitor.close()
        self._log.say("gateway.stopped")
        self._log.close()

    def hurry(self) -> None:
        """What is in flight need not finish."""
        self._crew.hurry()

    def restart_workers(self) -> None:
        """Replace each by a new one, which reads the certificate again."""
        if self._options.tls is not None:
            try:
                self._options.tls.read()
            except Unusable as error:
                self._log.say("gateway.certificate_refused", cause=error.message)
                return
            self._log.say("gateway.certificate_read")
        self._crew.restart()


async def serve(options: Options, workers: int) -> None:
    """Run a gateway of several workers until SIGTERM or SIGINT."""
    gateway = SharedGateway(options, workers)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        if stop.is_set():
            gateway.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    loop.add_signal_handler(signal.SIGHUP, gateway.restart_workers)
    await gateway.start()
    await stop.wait()
    await gateway.stop()
