"""One worker: a process that serves clients, and does as the gateway that started it says.

Started as `python -m roost.gateway.workers.worker FD`, FD being its end of a socket pair.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from roost.errors import RoostError
from roost.gateway.accounts import Log
from roost.gateway.certificate import Certificate
from roost.gateway.options import STDERR
from roost.gateway.service import settle_memory
from roost.gateway.serving import Serving
from roost.gateway.shared_loads import Board, Share
from roost.gateway.table import Places
from roost.gateway.workers.messages import (
    Begin,
    Confirmed,
    Counted,
    Finish,
    FromWorker,
    Hurry,
    Leaving,
    Listen,
    Ready,
    Report,
    Routes,
    ToWorker,
    frame,
    to_worker,
)

_PIPE_BUF: Final = 4096
"""Bytes that a pipe takes whole, whoever else writes to it (linux/limits.h)."""
_COUNT_S: Final = 1.0
"""How often the gateway is told what was counted: what a worker that is killed may take along."""


class Worker:
    """Serves from the sockets of its slots."""

    def __init__(self, begin: Begin, writer: asyncio.StreamWriter) -> None:
        self._sockets = begin.socket_fds
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        share = Share(Board(begin.board_fd, begin.rows), begin.row, tuple(begin.waker_fds))
        self._log = _log()
        self._serving = Serving(
            limits=begin.limits,
            log=self._log,
            rng=random.Random(),  # noqa: S311 - spreads load, guards nothing
            tls=None if begin.tls is None else Certificate(*map(Path, begin.tls)),
            cors_origins=begin.cors_origins,
            share=share,
        )
        self._waker = begin.waker_fds[begin.row]
        self._servers: dict[int, list[asyncio.Server]] = {}
        self._finishing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when it has finished."""

    def start(self) -> None:
        """Say that it can serve, and look at its deadlines from now on."""
        self._loop.add_reader(self._waker, self._woken)
        self._loop.add_signal_handler(signal.SIGTERM, self._tell, Leaving())
        self._tasks = [
            self._loop.create_task(self._serving.run_sweeps()),
            self._loop.create_task(self._tell_counts()),
        ]
        self._serving.sweep()
        settle_memory()
        self._tell(Ready())

    async def do(self, message: ToWorker) -> None:
        """What the gateway says."""
        match message:
            case Routes():
                self._serving.table.adopt(
                    message.snapshot, Places(models=message.models, replicas=message.replicas)
                )
            case Confirmed():
                self._serving.table.confirmed.set()
            case Listen():
                await self._listen(message.slots)
            case Report():
                self._tell(Counted(message.number, self._serving.counts()))
            case Finish():
                await self.finish(message.drain_s, patient=message.patient)
            case Hurry():
                self._serving.hurry()
            case Begin():
                raise ValueError("a worker begins once")

    async def finish(self, drain_s: float | None, *, patient: bool = False) -> None:
        """Take nothing new, and end when what is in flight has finished or had its time."""
        await self._listen([])
        for fd in (fd for fds in self._sockets for fd in fds):
            os.close(fd)
        self._sockets = []
        if self._finishing is not None:
            self._finishing.cancel()
        self._finishing = self._loop.create_task(self._finish(drain_s, patient))

    async def _finish(self, drain_s: float | None, patient: bool) -> None:
        await self._serving.finish(drain_s, patient=patient)
        self.ended.set_result(None)

    async def close(self) -> None:
        """Cut off what is left, and say what was counted in all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._serving.close()
        self._tell(Counted(0, self._serving.counts()))
        with contextlib.suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()
        self._log.close()

    async def _listen(self, slots: list[int]) -> None:
        for slot in [slot for slot in self._servers if slot not in slots]:
            for server in self._servers.pop(slot):
                server.close()
        if not self._sockets:
            return
        for slot in slots:
            if slot not in self._servers:
                self._servers[slot] = [
                    await self._serving.listen_on(socket.socket(fileno=os.dup(fd)))
                    for fd in self._sockets[slot]
                ]

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._waker)
        self._serving.table.look_at_queues()

    async def _tell_counts(self) -> None:
        told = b""
        while True:
            await asyncio.sleep(_COUNT_S)
            counts = self._serving.counts()
            now = msgspec.msgpack.encode(counts)
            if now != told:
                self._tell(Counted(0, counts))
                told = now

    def _tell(self, message: FromWorker) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(frame(message))


def _log() -> Log:
    # A write to a file is whole however long it is; one to a pipe may be mixed with the others'.
    is_file = stat.S_ISREG(os.fstat(STDERR).st_mode)
    return Log(STDERR, block=None if is_file else _PIPE_BUF)


async def _run(fd: int) -> None:
    # Until it is told what to be, a signal just ends it: nothing is in flight.
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    begin = await to_worker(reader)
    if not isinstance(begin, Begin):
        return
    worker = Worker(begin, writer)
    worker.start()
    obeying = asyncio.create_task(_obey(worker, reader, begin.limits.drain_s))
    await asyncio.wait({obeying, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
    if obeying.done():
        obeying.result()  # what went wrong there ends the worker
        await worker.ended
    obeying.cancel()
    await worker.close()


async def _obey(worker: Worker, reader: asyncio.StreamReader, drain_s: float) -> None:
    while (message := await to_worker(reader)) is not None:
        await worker.do(message)
    # The gateway is gone, and with it whoever could take this one's place.
    await worker.finish(drain_s)


def main() -> None:
    """Serve until told to end."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(int(sys.argv[1])))
    except RoostError as error:
        log = _log()
        log.say("gateway.worker_failed", worker=os.getpid(), cause=error.message, hint=error.hint)
        log.close()
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
