"""How the ranks of a fake engine over several nodes meet, and notice that one has died.

Rank 0 listens at the rendezvous; the others call until it answers, and each connection then lives
as long as both ends. That rank 0 notices at once and the others end with it, is ours: of a real
vLLM it is known that rank 0 fails its next request after a loss, and then ends.
"""

import argparse
import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Final, Self

_AGAIN_S: Final = 0.1


@dataclass(kw_only=True)
class Ranks:
    """One engine's place among its ranks; a count of 1 is an engine by itself."""

    rank: int
    count: int
    address: str
    port: int
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Everybody is there."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody has gone."""
    _joined: int = 1
    _listener: asyncio.Server | None = None
    _lines: set[asyncio.StreamWriter] = field(default_factory=set)

    @classmethod
    def of(cls, asked: argparse.Namespace) -> Self:
        """By the knobs of an engine."""
        return cls(
            rank=asked.node_rank,
            count=asked.nnodes,
            address=asked.master_addr,
            port=asked.master_port,
        )

    async def meet(self) -> None:
        """Until all are there; raises `OSError` if rank 0 can't have its port."""
        if self.count == 1:
            self.complete.set()
        elif self.rank == 0:
            self._listener = await asyncio.start_server(self._welcome, self.address, self.port)
        else:
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(self.address, self.port)
                    break
                await asyncio.sleep(_AGAIN_S)
            self._lines.add(writer)
            self._watch = asyncio.ensure_future(self._until_gone(reader))
            self.complete.set()
        await self.complete.wait()

    def close(self) -> None:
        """The others notice that it has gone."""
        if self._listener is not None:
            self._listener.close()
        for writer in self._lines:
            writer.transport.abort()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        self._joined += 1
        if self._joined == self.count:
            self.complete.set()
        await self._until_gone(reader)
        self._lines.discard(writer)
        writer.close()

    async def _until_gone(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(64):
                pass
        self.lost.set()
