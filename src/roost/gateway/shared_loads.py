"""What the workers of one gateway know of each other: memory they share, a row for each worker.

A worker writes its own row alone, so nothing of it outlives it: whoever started it clears the row.
To look and to take must be one step where slots are known, so that step is made under a lock of the
kernel's (POSIX, one byte a column), which a process that dies lets go of.
"""

import mmap
import os
import time
from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from typing import Final

REPLICAS: Final = 65_536
MODELS: Final = 16_384
"""Columns. The memory is sparse: what no replica or model uses costs nothing."""
SILENT_S: Final = 2.0
"""Who has not looked at its deadlines for so long is waited for by nobody."""
_TRIES: Final = 200

_BEAT: Final = 8
_COUNT: Final = 4


class Board:
    """The memory: in flight by replica, waiting by model, and when each worker last lived."""

    def __init__(self, fd: int, rows: int) -> None:
        self.fd = fd
        self.rows = rows
        self._memory = mmap.mmap(fd, _size(rows))
        whole = memoryview(self._memory)
        since = rows * _BEAT
        counts = since + MODELS * rows * _BEAT
        cells = counts + MODELS * rows * _COUNT
        self.beats = whole[:since].cast("d")
        self.since = whole[since:counts].cast("d")
        """When a model's longest waiting request came (monotonic seconds); 0: none waits."""
        self.waiting = whole[counts:cells].cast("i")
        self.in_flight = whole[cells : cells + REPLICAS * rows * _COUNT].cast("i")

    @classmethod
    def make(cls, rows: int) -> "Board":
        """New memory, without a name, that children may inherit."""
        fd = os.memfd_create("roost-gateway-loads", os.MFD_CLOEXEC)
        os.ftruncate(fd, _size(rows))
        return cls(fd, rows)

    def load(self, column: int) -> int:
        """Requests in flight on a replica, of all workers."""
        at = column * self.rows
        return sum(self.in_flight[at : at + self.rows])

    def waits(self, column: int) -> int:
        """Requests that wait for a model, of all workers."""
        at = column * self.rows
        return sum(self.waiting[at : at + self.rows])

    def clear(self, row: int, *, replicas: Iterator[int], models: Iterator[int]) -> int:
        """Take out what a worker that is gone had; how many requests that were in flight."""
        taken = 0
        self.beats[row] = 0
        for column in models:
            at = column * self.rows + row
            if self.since[at] or self.waiting[at]:
                self.since[at] = 0
                self.waiting[at] = 0
        for column in replicas:
            at = column * self.rows + row
            if self.in_flight[at]:
                taken += self.in_flight[at]
                self.in_flight[at] = 0
        return taken


class Share:
    """One worker's row, and what it sees of the others'."""

    def __init__(self, board: Board, row: int, wakers: tuple[int, ...]) -> None:
        """`wakers`: an eventfd for each row, which makes that worker look at its queues."""
        self._board = board
        self._rows = board.rows
        self._row = row
        self._wakers = wakers
        self._in_flight = board.in_flight
        self._since = board.since
        self._since_bytes = board.since.cast("B")
        self._nobody = bytes(board.rows * _BEAT)

    def beat(self) -> None:
        """Say that the worker lives."""
        self._board.beats[self._row] = time.monotonic()

    def load(self, column: int) -> int:
        """Requests in flight on a replica, of all workers."""
        at = column * self._rows
        return sum(self._in_flight[at : at + self._rows])

    def claim(self, column: int, slots: int | None) -> bool:
        """One more in flight on a replica, unless all of its slots are taken; `None`: no limit."""
        at, rows = column * self._rows, self._rows
        # Far from full nobody has to be kept out: others would have to take half of all slots
        # between this look and the next line.
        if slots is None or 2 * (sum(self._in_flight[at : at + rows]) + rows) < slots:
            self._in_flight[at + self._row] += 1
            return True
        fd = self._board.fd
        if not _lock(fd, column):
            return False
        room = sum(self._in_flight[at : at + rows]) < slots
        if room:
            self._in_flight[at + self._row] += 1
        lockf(fd, LOCK_UN, 1, column)
        return room

    def free(self, column: int) -> None:
        """One less; only makes room, so nobody has to be kept out."""
        self._in_flight[column * self._rows + self._row] -= 1

    def may_wait(self, column: int, size: int, since: float) -> bool:
        """Count one more that waits for a model, unless `size` wait; `since` counts if none did."""
        at = column * self._rows
        fd = self._board.fd
        if not _lock(fd, REPLICAS + column):
            return False
        room = self._board.waits(column) < size
        if room:
            self._board.waiting[at + self._row] += 1
            self._since[at + self._row] = self._since[at + self._row] or since
        lockf(fd, LOCK_UN, 1, REPLICAS + column)
        return room

    def publish(self, column: int, count: int, since: float) -> None:
        """How many wait here for a model, and since when the first of them; 0: none."""
        at = column * self._rows + self._row
        self._board.waiting[at] = count
        self._since[at] = since

    def first_other(self, column: int, before: float) -> int | None:
        """The row of the living worker whose request has waited longest, since before `before`."""
        at = column * self._rows
        end = at + self._rows
        if self._since_bytes[at * _BEAT : end * _BEAT] == self._nobody:
            return None
        since = self._since[at:end]
        lives = time.monotonic() - SILENT_S
        found = None
        for row, waits in enumerate(since):
            if 0 < waits < before and row != self._row and self._board.beats[row] >= lives:
                found, before = row, waits
        return found

    def wake(self, row: int) -> None:
        """Make another worker look at its queues."""
        os.eventfd_write(self._wakers[row], 1)


def _size(rows: int) -> int:
    return rows * (_BEAT + MODELS * (_BEAT + _COUNT) + REPLICAS * _COUNT)


def _lock(fd: int, byte: int) -> bool:
    """Whether this process is alone at `byte` now; who stands still there is not waited for."""
    for _ in range(_TRIES):
        try:
            lockf(fd, LOCK_EX | LOCK_NB, 1, byte)
        except OSError:
            os.sched_yield()
        else:
            return True
    return False
