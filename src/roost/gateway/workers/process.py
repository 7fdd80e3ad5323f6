"""One worker as the gateway sees it: its process, what is sent to it, what it last said."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from roost.gateway.counts import Counts
from roost.gateway.workers.messages import (
    Begin,
    Finish,
    FromWorker,
    ToWorker,
    frame,
    from_worker,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who is told of what a worker says and when it has ended."""

    said: "Callable[[WorkerProcess, FromWorker], None]"
    ended: "Callable[[WorkerProcess], None]"


class WorkerProcess:
    """A process of its own session: a terminal's Ctrl-C is the gateway's to act on."""

    def __init__(self, begin: Begin, *, slot: int, told: Told) -> None:
        """Start it; raises `OSError`: the machine has no process for it now."""
        self.row = begin.row
        self.slot = slot
        self.started = time.monotonic()
        self.ready = False
        self.leaving = False
        """It was asked to end and serves until another takes its place."""
        self.finishing: float | None = None
        """When it was told to take nothing new (monotonic seconds); `None`: it was not."""
        self.unhurried = False
        """It finishes in its own time."""
        self.slots: list[int] = []
        self.counts = Counts()
        """As it last said."""
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._wanted: deque[bytes] = deque()
        self._routes: bytes | None = None
        self._wake = asyncio.Event()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roost.gateway.workers.worker", str(theirs.fileno())],
                pass_fds=(
                    *(theirs.fileno(), begin.board_fd, *begin.waker_fds),
                    *(fd for fds in begin.socket_fds for fd in fds),
                ),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._socket = ours.dup()
        self._pidfd = os.pidfd_open(self.process.pid)
        self._loop.add_reader(self._pidfd, self._has_ended)
        self._talk = self._loop.create_task(self._converse(begin))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def send(self, message: ToWorker) -> None:
        """Tell it, as soon as it listens."""
        if isinstance(message, Finish):
            self.finishing = self.finishing or time.monotonic()
            self.unhurried = message.drain_s is None
        self._wanted.append(frame(message))
        self._wake.set()

    def route(self, routes: bytes) -> None:
        """Tell it the routes, a frame of `Routes`; of several that wait only the last is sent."""
        self._routes = routes
        self._wake.set()

    def kill(self) -> None:
        """End it at once. It has not been waited for, so its pid is nobody else's."""
        self.process.kill()

    async def _converse(self, begin: Begin) -> None:
        reader, writer = await asyncio.open_connection(sock=self._socket)
        writer.write(frame(begin))
        writing = self._loop.create_task(self._write(writer))
        try:
            while (message := await from_worker(reader)) is not None:
                self._told.said(self, message)
        finally:
            writing.cancel()
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                routes, self._routes = self._routes, None
                if routes is not None:
                    writer.write(routes)
                while self._wanted:
                    writer.write(self._wanted.popleft())
                # One that stands still gets the last routes when it goes on, not all between.
                await writer.drain()

    def _has_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.process.wait()
        self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        """Its last words may still be on their way here."""
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(self._talk, 1)
        self._told.ended(self)
