"""What a gateway and its workers tell each other, and how: msgpack in frames over a socket pair.

Both ends are of one installation; the socket pair has no name, so nobody else speaks on it.
"""

import asyncio
import struct
from typing import Final

import msgspec

from roost.formats.routing import Snapshot
from roost.gateway.counts import Counts
from roost.gateway.limits import Limits

_LENGTH: Final = struct.Struct("!I")


class Begin(msgspec.Struct, tag=True, kw_only=True):
    """The first word to a worker: what it is to be. The descriptors are inherited."""

    row: int
    """Its row of the shared memory."""
    rows: int
    board_fd: int
    waker_fds: list[int]
    """An eventfd for each row."""
    socket_fds: list[list[int]]
    """Listening sockets, by slot."""
    limits: Limits
    tls: tuple[str, str] | None
    """The files of the certificate and its key; `None`: plain HTTP."""
    cors_origins: tuple[str, ...]


class Routes(msgspec.Struct, tag=True, kw_only=True):
    """Route by this from now on."""

    snapshot: Snapshot
    models: dict[str, int | None]
    """Columns of the shared memory, by model; `None`: there are no more."""
    replicas: dict[str, list[int | None]]
    """By model, in the order of its routes."""


class Confirmed(msgspec.Struct, tag=True):
    """A server has said what is true now."""


class Listen(msgspec.Struct, tag=True):
    """Take connections from the sockets of these slots, and of no others."""

    slots: list[int]


class Report(msgspec.Struct, tag=True):
    """Say what there is now."""

    number: int


class Finish(msgspec.Struct, tag=True):
    """Take nothing new, let what is in flight finish in so many seconds (`None`: all), and end."""

    drain_s: float | None
    patient: bool = False
    """Others serve on: an idle connection may be used once more."""


class Hurry(msgspec.Struct, tag=True):
    """What is in flight need not finish."""


ToWorker = Begin | Routes | Confirmed | Listen | Report | Finish | Hurry


class Ready(msgspec.Struct, tag=True):
    """The worker can serve."""


class Counted(msgspec.Struct, tag=True):
    """What a worker has counted and holds; `number`: of the `Report` that asked; 0: of its own."""

    number: int
    counts: Counts


class Leaving(msgspec.Struct, tag=True):
    """Somebody asked this worker alone to end: it serves until another takes its place."""


FromWorker = Ready | Counted | Leaving

_encode: Final = msgspec.msgpack.Encoder().encode
_to_worker: Final = msgspec.msgpack.Decoder(ToWorker)
_from_worker: Final = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """The message as it is sent."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


async def to_worker(reader: asyncio.StreamReader) -> ToWorker | None:
    """The next message from the gateway; `None`: it is gone."""
    body = await _read(reader)
    return None if body is None else _to_worker.decode(body)


async def from_worker(reader: asyncio.StreamReader) -> FromWorker | None:
    """The next message from a worker; `None`: it is gone."""
    body = await _read(reader)
    return None if body is None else _from_worker.decode(body)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    except (EOFError, OSError):
        return None
