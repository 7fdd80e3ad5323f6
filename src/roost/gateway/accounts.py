"""What is counted and what is logged of each request; never a word of what was asked."""

import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

TTFT_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
UNKNOWN_MODEL: Final = "_unknown"
"""All names that are no model share it; no model can be called so."""
NO_MODEL: Final = "_none"
"""Requests that are not about a model, or were refused before it was read."""


class Histogram:
    """Counts by bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(TTFT_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(TTFT_BOUNDS, seconds)] += 1
        self.total += seconds


class Event(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True):
    """One request as it is logged; `None`: not known."""

    event: str
    at: float
    request: str
    method: str
    path: str
    status: int
    ended_by: str
    """`engine`: it answered. `client`: it left. `gateway`: it refused. `cut`: engine broke off."""
    duration_ms: float
    key: str | None = None
    model: str | None = None
    replica: str | None = None
    stream: bool = False
    queue_ms: float | None = None
    """How long it waited for a replica with room; `None`: not at all."""
    ttft_ms: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cause: str | None = None


class Log:
    """
    Lines of JSON to a file descriptor, written by a thread.

    A slow reader holds nothing up: lines past `most` that wait are dropped and counted.
    """

    def __init__(self, fd: int, *, most: int = 20_000, block: int | None = None) -> None:
        """`block`: bytes written at once, lines whole; other processes write to the same pipe."""
        self._fd = fd
        self._block = block
        self._most = most
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closed = False
        self.dropped = 0
        self._encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def line(self, event: object) -> None:
        """Log one event."""
        lines = self._lines
        if len(lines) >= self._most:
            self.dropped += 1
            return
        lines.append(self._encode(event))
        if not self._wake.is_set():
            self._wake.set()

    def say(self, event: str, **fields: object) -> None:
        """Log something that is not a request."""
        self.line({"event": event, "at": round(time.time(), 3), **fields})

    def close(self, timeout: float = 2) -> None:
        """Write what is left, if it can be written in time."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout)

    def _write(self) -> None:
        while True:
            self._wake.wait()
            if not self._closed:
                # One write for many lines; a log may lag by a blink.
                time.sleep(0.05)
            self._wake.clear()
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            for block in self._blocks(lines):
                self._write_all(block)
            if self._closed and not self._lines:
                return

    def _blocks(self, lines: list[bytes]) -> Iterator[bytes]:
        if lines and self._block is None:
            yield b"\n".join(lines) + b"\n"
            return
        block = b""
        for line in lines:
            if block and len(block) + len(line) >= (self._block or 0):
                yield block
                block = b""
            block += line + b"\n"
        if block:
            yield block

    def _write_all(self, text: bytes) -> None:
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # Nobody reads: requests are more important than their log.
            self.dropped += text.count(b"\n")


class Accounts:
    """Counters and the log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.requests: dict[tuple[str, int], int] = {}
        self.ttft: dict[str, Histogram] = {}
        self.in_flight = 0

    def count(self, model: str, code: int, ttft: float | None) -> None:
        """Count a request that is over."""
        key = (model, code)
        self.requests[key] = self.requests.get(key, 0) + 1
        if ttft is not None:
            histogram = self.ttft.get(model)
            if histogram is None:
                histogram = self.ttft[model] = Histogram()
            histogram.observe(ttft)
