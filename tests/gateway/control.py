"""The server as gateways see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from roost.formats.routing import Snapshot, encode

CREDENTIAL = "the-gateways-own-credential"


class Server:
    """A server that knows one thing: the snapshot."""

    def __init__(self) -> None:
        self.now: Snapshot | None = None
        self.changed = asyncio.Event()
        self.asked: list[dict[str, str]] = []
        self.status = 200
        self.chunked = False
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def says(self, new: Snapshot) -> None:
        self.now = new
        self.changed.set()
        self.changed = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.changed.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = urlsplit(head.split(" ")[1])
            assert target.path == "/gateway/v1/snapshot"
            query = {name: values[0] for name, values in parse_qs(target.query).items()}
            self.asked.append(query)
            if f"authorization: Bearer {CREDENTIAL}" not in head:
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                return
            if self._known(query):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), float(query["wait"]))
            if self._server is None:
                return
            if self.status != 200:
                writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.status)
            elif self._known(query):
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            else:
                body = encode(self.now)
                if self.chunked:
                    framed = b"".join(
                        b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7])
                        for at in range(0, len(body), 7)
                    )
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    writer.write(framed + b"0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                    writer.write(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _known(self, query: dict[str, str]) -> bool:
        now = self.now
        return now is None or (
            query.get("revision") == str(now.revision)
            and query.get("incarnation") == str(now.incarnation)
            and query.get("epoch") == str(now.epoch)
        )


@asynccontextmanager
async def serving(directory: Path, now: Snapshot | None = None) -> AsyncIterator[Server]:
    (directory / "server").mkdir(exist_ok=True)
    (directory / "server" / "gateway_credential").write_text(CREDENTIAL + "\n")
    server = Server()
    server.now = now
    await server.start()
    (directory / "server" / "endpoint.json").write_text(json.dumps({"api": server.url}))
    try:
        yield server
    finally:
        await server.stop()
