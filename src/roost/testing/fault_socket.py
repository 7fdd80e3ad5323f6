"""How a running made-up fleet is told what is to go wrong: a 0600 socket in its directory.

A line of JSON each way. Whoever may write to the socket runs as the fleet's own user.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from roost.errors import NotFound, RoostError, Unreachable, Unusable
from roost.testing.fake_fleet import FakeFleet
from roost.testing.faults import Fault, Kind

NAME: Final = "faults.sock"
_WITHIN_S: Final = 60.0
_LONGEST: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked of the fleet."""

    what: Literal["fail", "heal", "list"]
    node: str = ""
    kind: Kind | None = None
    """Of `heal`: `None` means all."""
    gpu: int | None = None
    replica: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The faults that were made, that ended, or that stand; or why not."""

    faults: tuple[Fault, ...] = ()
    error: str | None = None
    hint: str | None = None
    not_found: bool = False


@asynccontextmanager
async def listening(fleet: FakeFleet, directory: Path) -> AsyncIterator[None]:
    """Take orders for a fleet for as long as this lasts."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            line = await reader.readline()
            writer.write(msgspec.json.encode(await _obey(fleet, line)) + b"\n")
            await writer.drain()
        writer.close()

    path = directory / NAME
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _short(path) as name:
        before = os.umask(0o177)
        try:
            listener.bind(name)
        finally:
            os.umask(before)
    server = await asyncio.start_unix_server(serve, sock=listener, limit=_LONGEST)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _obey(fleet: FakeFleet, line: bytes) -> Answer:
    try:
        order = msgspec.json.decode(line, type=Order)
        return Answer(faults=await _carried_out(fleet, order))
    except msgspec.DecodeError as cause:
        return Answer(error=f"the order cannot be read: {cause}")
    except RoostError as cause:
        return Answer(error=cause.message, hint=cause.hint, not_found=isinstance(cause, NotFound))


async def _carried_out(fleet: FakeFleet, order: Order) -> tuple[Fault, ...]:
    if order.what == "list":
        return fleet.faults()
    if order.what == "heal":
        ended = await fleet.heal(order.node, order.kind, gpu=order.gpu, replica=order.replica)
        return tuple(ended)
    if order.kind is None:
        raise Unusable("no kind of fault is named")
    fault = Fault(node=order.node, kind=order.kind, gpu=order.gpu, replica=order.replica)
    return (await fleet.fail(fault),)


def tell(directory: Path, order: Order) -> tuple[Fault, ...]:
    """Give an order to the fleet that runs in a directory, or in `fleet` below it.

    Raises `Unreachable` if none does, `NotFound` and `Unusable` as the fleet says.
    """
    path = next((at for at in (directory / NAME, directory / "fleet" / NAME) if at.exists()), None)
    if path is None:
        raise Unreachable(
            f"no made-up fleet runs in {directory}",
            hint="start one: roost up --fake-fleet FILE, or say where it runs: --dir DIR",
        )
    with socket.socket(socket.AF_UNIX) as line, _short(path) as name:
        line.settimeout(_WITHIN_S)
        try:
            line.connect(name)
            line.sendall(msgspec.json.encode(order) + b"\n")
            with line.makefile("rb") as file:
                said = file.readline()
        except OSError as cause:
            raise Unreachable(
                f"the fleet of {path.parent} does not answer: "
                f"{(cause.strerror or str(cause)).lower()}",
                hint="is it still running? start it again, or name another: --dir DIR",
            ) from None
    if not said:
        raise Unreachable(f"the fleet of {path.parent} ended before it answered")
    answer = msgspec.json.decode(said, type=Answer)
    if answer.error is not None:
        raise (NotFound if answer.not_found else Unusable)(answer.error, hint=answer.hint)
    return answer.faults


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for a socket however deep it is: the kernel takes 107 bytes (man 7 unix)."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)
