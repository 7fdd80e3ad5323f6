"""What the server asks for once: the log of an engine."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

import structlog

from roost.agent import logs
from roost.agent.server import Server
from roost.agent.supervise.log import EARLIER_RUNS, Log
from roost.agent.tasks import cancel
from roost.domain.replica import ShardSpec
from roost.errors import RoostError
from roost.formats import agent_wire as wire

log = structlog.get_logger()


class Logged(Protocol):
    """An engine that writes a log."""

    spec: ShardSpec
    running: ShardSpec
    """What the present run was started with."""
    log: Log


class Engines(Protocol):
    """Those of this node."""

    def shard(self, placement: str, rank: int) -> Logged | None:
        """One of them; `None`: it is not here."""
        ...


class Orders:
    """Each is carried out once, beside the others."""

    def __init__(self, server: Server, engines: Engines) -> None:
        self._server = server
        self._engines = engines
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def take(self, credential: str, *, wait: float) -> None:
        """Ask for orders and begin to carry them out."""
        orders = await self._server.orders(credential, wait=wait)
        for order in orders.logs:
            if order.id in self._under_way:
                continue
            task = asyncio.create_task(self._send_log(credential, order))
            self._under_way[order.id] = task
            task.add_done_callback(partial(self._done, order.id))

    async def close(self) -> None:
        """Break off what is under way."""
        await cancel(list(self._under_way.values()))

    def _done(self, order: str, _: object) -> None:
        self._under_way.pop(order, None)

    async def _send_log(self, credential: str, order: wire.LogOrder) -> None:
        try:
            await self._server.send_log(credential, order.id, self._log_of(order))
        except RoostError as cause:
            # Mostly: whoever read it has gone.
            log.info("agent.log_not_sent", order=order.id, cause=cause.message)

    async def _log_of(self, order: wire.LogOrder) -> AsyncIterator[bytes]:
        shard = self._engines.shard(order.placement, order.rank)
        if shard is None:
            yield f"[roost: this node has no shard {order.rank} of {order.placement}]\n".encode()
            return
        # A server of an earlier version knows one earlier run alone.
        back = min(max(order.runs_back, int(order.previous)), EARLIER_RUNS)
        path = shard.log.earlier(back)
        if not path.exists():
            which = f"run {back} before the present one" if back else "run"
            yield f"[roost: there is no log of a {which} of {shard.spec.replica}]\n".encode()
            return
        async for chunk in logs.stream(
            path,
            tail_lines=order.tail_lines,
            follow=order.follow and not back,
            secret=shard.running.key,
        ):
            yield chunk
