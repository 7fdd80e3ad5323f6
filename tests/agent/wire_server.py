"""A server as an agent sees it: joins, reports, desired states by long poll, orders and logs."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from roost.domain.replica import Desired, ObservedShard, PlacementId, ShardSpec
from roost.formats import agent_wire as wire

T = TypeVar("T")


@dataclass
class WireServer:
    """Speaks HTTP/1.1 on loopback; everything that an agent said is kept for asking."""

    fleet: str = "fleet-1"
    tokens: set[str] = field(default_factory=lambda: {"token-1"})
    credentials: set[str] = field(default_factory=set)
    joins: list[wire.Join] = field(default_factory=list)
    reports: list[wire.Report] = field(default_factory=list)
    desired: Desired | None = None
    orders: list[wire.LogOrder] = field(default_factory=list)
    logs: dict[str, bytearray] = field(default_factory=dict)
    ended_logs: set[str] = field(default_factory=set)
    interval: float = 0.5
    mode: str = "ok"
    """`ok`, `reset` (every connection is reset), `error` (500 to everything), `copy` (another
    machine is the node)."""
    connections: int = 0
    refusals: int = 0
    port: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _log_writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["WireServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.drop_connections()
            await server.wait_closed()

    def drop_connections(self) -> None:
        """As a server that ends does."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def want(self, *run: ShardSpec, stop: tuple[str, ...] = (), **changes: int | str) -> None:
        """Publish a new desired state."""
        before = self.desired
        revision = 1 if before is None else before.revision + 1
        self.desired = Desired(
            fleet=str(changes.get("fleet", self.fleet)),
            incarnation=int(changes.get("incarnation", before.incarnation if before else 1)),
            epoch=int(changes.get("epoch", before.epoch if before else 1)),
            revision=int(changes.get("revision", revision)),
            run=run,
            stop=tuple(PlacementId(one) for one in stop),
            report_interval_s=self.interval,
        )
        await self._notify()

    async def order(self, order: wire.LogOrder) -> None:
        self.orders.append(order)
        await self._notify()

    async def answer_logs(self) -> None:
        """Before their ends: whoever read them has gone."""
        for writer in self._log_writers:
            self._answer(writer, 200, b"")
            await writer.drain()
            writer.close()
        self._log_writers.clear()

    async def until(self, found: Callable[[], T | None], *, within: float = 90) -> T:
        """What `found` finds, once it finds something; asked after whatever an agent says."""
        try:
            async with asyncio.timeout(within):
                while True:
                    if (result := found()) is not None and result is not False:
                        return result
                    async with self._changed:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.2):
                                await self._changed.wait()
        except TimeoutError:
            last = self.reports[-1] if self.reports else None
            raise AssertionError(f"not within {within} s; the last report: {last}") from None

    def shard(self, placement: str) -> ObservedShard | None:
        """As last reported."""
        if not self.reports:
            return None
        return next((s for s in self.reports[-1].shards if s.placement == placement), None)

    async def state(self, placement: str, state: str, *, within: float = 90) -> ObservedShard:
        """The shard once it is reported in this state."""

        def found() -> ObservedShard | None:
            shard = self.shard(placement)
            return shard if shard is not None and shard.state == state else None

        return await self.until(found, within=within)

    async def told(
        self, rule: Callable[[ObservedShard], bool], placement: str = "p1"
    ) -> ObservedShard:
        """The shard as soon as a report fits the rule."""

        def found() -> ObservedShard | None:
            one = self.shard(placement)
            return one if one is not None and rule(one) else None

        return await self.until(found)

    async def next_report(self) -> wire.Report:
        count = len(self.reports)
        return await self.until(lambda: self.reports[-1] if len(self.reports) > count else None)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.mode == "reset":
            writer.transport.abort()
            return False
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines if line)}
        path, _, query = target.partition("?")
        asked = dict(part.partition("=")[::2] for part in query.split("&") if part)
        if path.startswith("/agent/v1/logs/"):
            self._log_writers.add(writer)
            await self._take_log(path.rpartition("/")[2], reader)
            self._log_writers.discard(writer)
            return self._answer(writer, 204, b"")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if self.mode == "reset":
            writer.transport.abort()
            return False
        if self.mode == "error":
            return self._answer(writer, 500, b"")
        if self.mode == "copy":
            return self._problem(writer, 409, "this is another machine", code="copied_identity")
        known = headers.get("authorization", "").removeprefix("Bearer ") in self.credentials
        if path != "/agent/v1/join" and not known:
            return self._problem(writer, 401, "this credential is not known here")
        routes: dict[str, Callable[[], Awaitable[bool]]] = {
            "/agent/v1/join": lambda: self._join(writer, body),
            "/agent/v1/report": lambda: self._report(writer, body),
            "/agent/v1/desired": lambda: self._desired(writer, asked),
            "/agent/v1/orders": lambda: self._orders(writer, asked),
        }
        del method
        return await routes[path]()

    async def _join(self, writer: asyncio.StreamWriter, body: bytes) -> bool:
        join = wire.decode_join(body)
        if join.token not in self.tokens:
            return self._problem(writer, 401, "this token is not known here")
        self.joins.append(join)
        credential = f"credential-{next(self._numbers)}"
        self.credentials.add(credential)
        joined = wire.Joined(fleet=self.fleet, node=join.name, credential=credential)
        await self._notify()
        return self._answer(writer, 200, wire.encode(joined))

    async def _report(self, writer: asyncio.StreamWriter, body: bytes) -> bool:
        self.reports.append(wire.decode_report(body))
        await self._notify()
        answer = wire.Reported(report_interval_s=self.interval)
        return self._answer(writer, 200, wire.encode(answer))

    async def _desired(self, writer: asyncio.StreamWriter, asked: dict[str, str]) -> bool:
        def news() -> Desired | None:
            wanted = self.desired
            if wanted is None:
                return None
            has = [asked.get(name) for name in ("incarnation", "epoch", "revision")]
            now = [str(wanted.incarnation), str(wanted.epoch), str(wanted.revision)]
            return wanted if has != now else None

        found = await self._wait(news, float(asked.get("wait", "0")))
        return self._answer(writer, *((204, b"") if found is None else (200, wire.encode(found))))

    async def _orders(self, writer: asyncio.StreamWriter, asked: dict[str, str]) -> bool:
        await self._wait(lambda: self.orders or None, float(asked.get("wait", "0")))
        taken, self.orders = tuple(self.orders), []
        return self._answer(writer, 200, wire.encode(wire.Orders(logs=taken)))

    async def _wait(self, found: Callable[[], T | None], seconds: float) -> T | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while found() is None and self.mode == "ok":
                    async with self._changed:
                        await self._changed.wait()
        return found()

    async def _take_log(self, order: str, reader: asyncio.StreamReader) -> None:
        text = self.logs.setdefault(order, bytearray())
        while size := int(await reader.readline(), 16):
            text += await reader.readexactly(size)
            await reader.readline()
            await self._notify()
        await reader.readline()
        self.ended_logs.add(order)
        await self._notify()

    def _problem(
        self, writer: asyncio.StreamWriter, status: int, detail: str, code: str = "refused"
    ) -> bool:
        self.refusals += 1
        problem = wire.Problem(title="Refused", status=status, code=code, detail=detail)
        return self._answer(writer, status, wire.encode(problem))

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> bool:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        return True
