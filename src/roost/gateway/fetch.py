"""One GET to the server, on a connection of its own; all that the gateway ever asks it."""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from roost.errors import Unreachable, Unusable
from roost.gateway.chunks import BadChunk, ChunkWalker
from roost.gateway.heads import END, BadHead, parse_answer

_MOST_BYTES: Final = 256 * 1024 * 1024


async def fetch(
    server: str, target: str, *, credential: str, timeout_s: float
) -> tuple[int, bytes]:
    """The status and body of the answer; raises `Unreachable` when there is none."""
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise Unusable(f"the server's address is not an http URL: {server}")
    tls = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                url.hostname, port, ssl=tls, limit=1024 * 1024
            )
            try:
                writer.write(
                    f"GET {url.path.rstrip('/')}{target} HTTP/1.1\r\n"
                    f"host: {url.netloc.rpartition('@')[2]}\r\n"
                    f"authorization: Bearer {credential}\r\n"
                    "accept: application/json\r\nconnection: close\r\n\r\n".encode("latin-1")
                )
                await writer.drain()
                head = parse_answer(await reader.readuntil(END))
                if head.status in (204, 304):
                    return head.status, b""
                if head.length is not None:
                    if head.length > _MOST_BYTES:
                        raise Unreachable(f"the server at {server} answers {head.length} bytes")
                    return head.status, await reader.readexactly(head.length)
                if not head.chunked:
                    return head.status, await reader.read(-1)
                return head.status, await _read_chunks(reader)
            finally:
                writer.close()
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Unreachable(
            f"the server at {server} does not answer: {type(error).__name__}"
        ) from error
    except (OSError, BadHead, BadChunk) as error:
        raise Unreachable(f"the server at {server} does not answer: {error}") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    walker, parts, rest, size = ChunkWalker(), list[bytes](), b"", 0
    while not walker.done:
        block = await reader.read(256 * 1024)
        if not block:
            raise BadChunk("the answer ends early")
        block = rest + block
        rest = block[walker.feed(block) :]
        parts.extend(walker.data)
        size += sum(map(len, walker.data))
        if size > _MOST_BYTES:
            raise BadChunk("the answer is too large")
    return b"".join(parts)
