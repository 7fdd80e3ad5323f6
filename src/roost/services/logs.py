"""An engine's log on its way from the agent that has it to whoever asked: bounded, both ways."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from roost.domain.node import NodeName
from roost.errors import NotFound, Unavailable
from roost.formats.agent_wire import LogOrder, Orders
from roost.services.secrets import new_id
from roost.services.watch import Watch

_CHUNKS: Final = 32
_CHUNK_BYTES: Final = 65_536
_ANSWER_S: Final = 20.0
_AT_ONCE: Final = 64


class LogStream:
    """One request for a log; whoever leaves first ends it for the other."""

    def __init__(self, node: NodeName, order: LogOrder) -> None:
        self.node = node
        self.order = order
        self.taken = False
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS)
        self._ended = asyncio.Event()
        self._left = asyncio.Event()

    async def feed(self, chunks: AsyncIterator[bytes]) -> None:
        """The agent's side: pass its bytes on until it ends or the reader has left."""
        self.taken = True
        copying = asyncio.ensure_future(self._copy(chunks))
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ended.set()
            for task in (copying, leaving):
                task.cancel()
            await asyncio.gather(copying, leaving, return_exceptions=True)

    async def _copy(self, chunks: AsyncIterator[bytes]) -> None:
        async for chunk in chunks:
            for start in range(0, len(chunk), _CHUNK_BYTES):
                # A full queue holds the agent back; nothing is dropped.
                await self._chunks.put(chunk[start : start + _CHUNK_BYTES])

    async def first(self) -> bytes:
        """The first bytes, empty if there are none; raises when the agent doesn't answer."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._next()
        except TimeoutError:
            if self.taken:
                return b""
            self.leave()
            raise Unavailable(
                f"node {self.node} did not send the log within {_ANSWER_S:.0f} s",
                hint=f"is its agent running? roost ctl node {self.node}",
            ) from None

    async def rest(self) -> AsyncIterator[bytes]:
        """Everything after, until the agent ends."""
        try:
            while chunk := await self._next():
                yield chunk
        finally:
            self.leave()

    async def _next(self) -> bytes:
        getting = asyncio.ensure_future(self._chunks.get())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            return self._chunks.get_nowait() if not self._chunks.empty() else b""
        finally:
            getting.cancel()
            ending.cancel()

    def leave(self) -> None:
        """The reader has left."""
        self._left.set()


class LogRelay:
    """Orders waiting for their agents, and streams under way."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._streams: dict[str, LogStream] = {}
        self._given: set[str] = set()

    def open(
        self,
        node: NodeName,
        placement: str,
        *,
        rank: int,
        tail_lines: int,
        follow: bool,
        runs_back: int,
    ) -> LogStream:
        """Ask a node's agent for a log."""
        if len(self._streams) >= _AT_ONCE:
            raise Unavailable(f"{_AT_ONCE} logs are being read already; end one of them")
        order = LogOrder(
            id=new_id("l-"),
            placement=placement,
            rank=rank,
            tail_lines=tail_lines,
            follow=follow,
            runs_back=runs_back,
            previous=runs_back > 0,
        )
        stream = LogStream(node, order)
        self._streams[order.id] = stream
        self._watch.bump([_topic(node)])
        return stream

    def close(self, stream: LogStream) -> None:
        """The reader is done."""
        stream.leave()
        self._streams.pop(stream.order.id, None)
        self._given.discard(stream.order.id)

    def close_all(self) -> None:
        """The server ends."""
        for stream in list(self._streams.values()):
            self.close(stream)

    async def orders(self, node: NodeName, *, wait_s: float) -> Orders:
        """What is asked of a node and was not handed to it yet; waits for something."""
        revision = self._watch.revision(_topic(node))
        if not (new := self._new(node)):
            await self._watch.change(_topic(node), revision, timeout_s=min(max(wait_s, 0), 60))
            new = self._new(node)
        self._given.update(order.id for order in new)
        return Orders(logs=tuple(new))

    def _new(self, node: NodeName) -> list[LogOrder]:
        return [
            stream.order
            for id_, stream in self._streams.items()
            if stream.node == node and id_ not in self._given
        ]

    async def feed(self, node: NodeName, id_: str, chunks: AsyncIterator[bytes]) -> None:
        """An agent sends a log that was asked of it."""
        stream = self._streams.get(id_)
        if stream is None or stream.node != node or stream.taken:
            raise NotFound("nobody waits for this log any more")
        await stream.feed(chunks)


def _topic(node: NodeName) -> str:
    return f"orders/{node}"
