"""The workers of one gateway together: started, told the routes, watched, replaced, ended."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from roost.errors import Unavailable
from roost.formats.routing import RoutedModel, Snapshot
from roost.gateway.accounts import Log
from roost.gateway.columns import Columns
from roost.gateway.counts import Counts, total
from roost.gateway.limits import Limits
from roost.gateway.shared_loads import MODELS, REPLICAS, SILENT_S, Board
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
    frame,
)
from roost.gateway.workers.process import Told, WorkerProcess
from roost.gateway.workers.slots import Hand, share_out
from roost.reconcile.routing import Version

_LOOK_S: Final = 0.5
_HUNG_S: Final = 30.0
"""A worker that has not looked at its deadlines for so long is ended: nothing moves in it."""
_START_S: Final = 60.0
_REPORT_S: Final = 0.5
_QUICK_S: Final = 60.0
"""A worker that ends sooner after its start makes the next start wait."""
_LONGEST_DELAY_S: Final = 30.0
_NO_PROCESS_S: Final = 5.0
_KILL_S: Final = 5.0
"""Past its drain time; then it is ended."""

Replica = tuple[str, str, str, str, int, str]
"""Model, replica, placement, host, port, key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every worker is given."""

    sockets: Sequence[Sequence[socket.socket]]
    """Listening, by slot: as many slots as workers."""
    limits: Limits
    tls: tuple[str, str] | None
    cors_origins: tuple[str, ...]


class Crew:
    """As many workers as there are slots, and beside them those that finish."""

    def __init__(self, work: Work, log: Log) -> None:
        self._work = work
        self._log = log
        self._size = len(work.sockets)
        # Each slot may have one that finishes beside the one that serves, and two be on their way.
        self._rows = 2 * self._size + 2
        self._board = Board.make(self._rows)
        self._wakers = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(self._rows)]
        self._replicas: Columns[Replica] = Columns(
            REPLICAS, lambda column: self._board.load(column) == 0
        )
        self._models: Columns[str] = Columns(MODELS, lambda column: self._board.waits(column) == 0)
        self._workers: dict[int, WorkerProcess] = {}
        """By row."""
        self._gone = Counts()
        self._routes: bytes | None = None
        self._quick_ends = [0] * self._size
        self._start_at = [0.0] * self._size
        self._stopping = False
        self._reports = 0
        self._awaited: dict[int, set[int]] = {}
        self._changed = asyncio.Event()
        self.version: Version | None = None
        self.confirmed = asyncio.Event()

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a worker for each slot; return when all take connections.

        Raises `Unavailable`: one ended, or was not ready in time.
        """
        for slot in range(self._size):
            self._start(slot)
        first = dict(self._workers)
        deadline = time.monotonic() + _START_S
        while self.serving < self._size:
            if self._workers != first or time.monotonic() > deadline:
                for worker in self._workers.values():
                    worker.kill()
                raise Unavailable(
                    "a worker of the gateway does not start",
                    hint="the lines before this one say why",
                )
            await self._change(_LOOK_S)

    async def run(self) -> None:
        """Watch over them until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._look()

    async def stop(self, drain_s: float) -> None:
        """Let all finish in their time; return when they have ended."""
        self._stopping = True
        for one in (one for group in self._work.sockets for one in group):
            one.close()
        for worker in self._workers.values():
            worker.send(Finish(drain_s))
        deadline = time.monotonic() + drain_s + _KILL_S
        while self._workers:
            await self._change(_LOOK_S)
            if time.monotonic() > deadline:
                for worker in self._workers.values():
                    worker.kill()

    def hurry(self) -> None:
        """What is in flight need not finish."""
        for worker in self._workers.values():
            worker.send(Hurry())

    def restart(self) -> None:
        """Replace them one after another; each finishes what it has."""
        for worker in self._workers.values():
            worker.leaving = True
        self._look()

    # -- what they route by ------------------------------------------------------------------------

    def adopt(self, snapshot: Snapshot) -> None:
        """Let all route by `snapshot` from now on."""
        self.version = Version(
            fleet=snapshot.fleet,
            incarnation=snapshot.incarnation,
            epoch=snapshot.epoch,
            revision=snapshot.revision,
        )
        models = self._models.assign(model.name for model in snapshot.models)
        columns = iter(self._replicas.assign(_replicas(snapshot.models)))
        self._routes = frame(
            Routes(
                snapshot=snapshot,
                models={m.name: at for m, at in zip(snapshot.models, models, strict=True)},
                replicas={m.name: [next(columns) for _ in m.routes] for m in snapshot.models},
            )
        )
        for worker in self._workers.values():
            worker.route(self._routes)

    async def tell_confirmed(self) -> None:
        """Once a server has said what is true now, the workers know it, too."""
        await self.confirmed.wait()
        for worker in self._workers.values():
            worker.send(Confirmed())

    # -- what they are at --------------------------------------------------------------------------

    @property
    def serving(self) -> int:
        """How many take connections."""
        return sum(bool(worker.slots) for worker in self._hands())

    async def counts(self) -> Counts:
        """Of all, those that are gone too; one that stands still counts as it last said."""
        self._reports += 1
        number = self._reports
        self._awaited[number] = {w.row for w in self._workers.values() if w.ready}
        for row in self._awaited[number]:
            self._workers[row].send(Report(number))
        deadline = time.monotonic() + _REPORT_S
        while self._awaited[number] and (left := deadline - time.monotonic()) > 0:
            await self._change(left)
        del self._awaited[number]
        return total([self._gone, *(worker.counts for worker in self._workers.values())])

    def _said(self, worker: WorkerProcess, message: FromWorker) -> None:
        match message:
            case Ready():
                worker.ready = True
                self._look()
            case Counted():
                worker.counts = message.counts
                self._awaited.get(message.number, set()).discard(worker.row)
            case Leaving():
                worker.leaving = True
                self._look()
        self._changed.set()

    def _ended(self, worker: WorkerProcess) -> None:
        del self._workers[worker.row]
        self._gone.add(worker.counts.ended())
        lost = self._board.clear(
            worker.row, replicas=self._replicas.used(), models=self._models.used()
        )
        for row in self._workers:
            os.eventfd_write(self._wakers[row], 1)
        for awaited in self._awaited.values():
            awaited.discard(worker.row)
        self._log.say(
            "gateway.worker_ended",
            worker=worker.pid,
            status=worker.process.returncode,
            in_flight=lost,
        )
        if worker.finishing is None:
            self._delay(worker)
        self._look()
        self._changed.set()

    def _delay(self, worker: WorkerProcess) -> None:
        """One that ends unasked is replaced at once; the next ones that do so soon, ever later."""
        now, slot = time.monotonic(), worker.slot
        quick = self._quick_ends[slot] + 1 if now - worker.started < _QUICK_S else 0
        self._quick_ends[slot] = quick
        wait = 0.0 if quick <= 1 else min(_LONGEST_DELAY_S, 2.0 ** (quick - 2))
        self._start_at[slot] = now + wait

    # -- one for another ---------------------------------------------------------------------------

    def _hands(self) -> list[WorkerProcess]:
        """Those that can take connections."""
        lives = time.monotonic() - SILENT_S
        return [
            worker
            for worker in self._workers.values()
            if worker.ready and worker.finishing is None and self._beat(worker) >= lives
        ]

    def _beat(self, worker: WorkerProcess) -> float:
        return max(self._board.beats[worker.row], worker.started)

    def _look(self) -> None:
        """End those that hang, share the slots out, start those that are missing."""
        if self._stopping:
            return
        now = time.monotonic()
        for worker in self._workers.values():
            limit = _HUNG_S if worker.ready else _START_S
            if now - self._beat(worker) > limit:
                self._log.say("gateway.worker_hangs", worker=worker.pid, silent_s=limit)
                worker.kill()
        self._share_out()
        for slot in range(self._size):
            there = [w for w in self._workers.values() if w.slot == slot and w.finishing is None]
            if any(not worker.leaving for worker in there) or now < self._start_at[slot]:
                continue
            if there and not all(worker.ready for worker in self._workers.values()):
                continue  # one after another: what it is to replace serves on
            self._start(slot)

    def _share_out(self) -> None:
        hands = self._hands()
        taken = share_out(
            self._size, [Hand(row=w.row, slot=w.slot, started=w.started) for w in hands]
        )
        for worker in sorted(hands, key=lambda hand: len(taken[hand.row]), reverse=True):
            slots = taken[worker.row]
            if slots != worker.slots:
                worker.slots = slots
                worker.send(Listen(slots))
            if not slots:
                worker.send(Finish(None, patient=True))

    def _start(self, slot: int) -> None:
        row = next((row for row in range(self._rows) if row not in self._workers), None)
        if row is None:
            self._hurry_the_oldest()
            return
        work = self._work
        try:
            worker = WorkerProcess(
                Begin(
                    row=row,
                    rows=self._rows,
                    board_fd=self._board.fd,
                    waker_fds=self._wakers,
                    socket_fds=[[one.fileno() for one in group] for group in work.sockets],
                    limits=work.limits,
                    tls=work.tls,
                    cors_origins=work.cors_origins,
                ),
                slot=slot,
                told=Told(said=self._said, ended=self._ended),
            )
        except OSError as error:
            self._log.say("gateway.worker_not_started", slot=slot, cause=str(error))
            self._start_at[slot] = time.monotonic() + _NO_PROCESS_S
            return
        self._workers[row] = worker
        if self._routes is not None:
            worker.route(self._routes)
        if self.confirmed.is_set():
            worker.send(Confirmed())
        self._log.say("gateway.worker_started", worker=worker.pid, slot=slot)

    def _hurry_the_oldest(self) -> None:
        """No row is free: who has been finishing longest gets a drain's time from now on."""
        finishing = [w for w in self._workers.values() if w.finishing is not None]
        if finishing and all(worker.unhurried for worker in finishing):
            oldest = min(finishing, key=lambda worker: worker.finishing or 0.0)
            drain_s = self._work.limits.drain_s
            self._log.say("gateway.worker_hurried", worker=oldest.pid, drain_s=drain_s)
            oldest.send(Finish(drain_s, patient=True))

    async def _change(self, most_s: float) -> None:
        """Wait until one of them has said something or ended, but no longer than that."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), most_s)


def _replicas(models: Iterable[RoutedModel]) -> Iterator[Replica]:
    """The same one in two snapshots is the same engine."""
    for model in models:
        for route in model.routes:
            yield model.name, route.replica, route.placement, route.host, route.port, route.key
