"""A client's connection without a socket: the test decides where the bytes are split."""

import asyncio
from typing import Any

from roost.gateway.client import ClientConnection


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Fed:
    """One connection that is fed."""

    def __init__(self, gateway: Any) -> None:
        self.transport = Transport()
        self.protocol = ClientConnection(gateway.context, set())
        self.protocol.connection_made(self.transport)

    def feed(self, data: bytes) -> None:
        self.protocol.data_received(data)

    async def status(self) -> int:
        """Of the first answer, once it has come."""
        async with asyncio.timeout(30):
            while b"\r\n\r\n" not in self.transport.written:  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0)
        return int(self.transport.written[9:12])
