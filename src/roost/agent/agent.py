"""The agent's process: join, report, obey, and keep the engines whatever becomes of the server."""

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import structlog

from roost.agent.asking import Asking
from roost.agent.backoff import Backoff
from roost.agent.copied import Copied
from roost.agent.directory import Directory
from roost.agent.facts import Asked
from roost.agent.facts.gpus import gone
from roost.agent.facts.holders import Holders
from roost.agent.facts.reach import Reach
from roost.agent.membership import Invitation, Membership
from roost.agent.obedience import Obedience
from roost.agent.orders import Orders
from roost.agent.reading import Reading
from roost.agent.server import Server
from roost.agent.supervise import probe, procfs
from roost.agent.supervise.engines import Engines
from roost.agent.supervise.kept import Shelf
from roost.agent.supervise.process import cpus
from roost.agent.supervise.tools import Tools
from roost.agent.tasks import cancel, first
from roost.domain.profile import Engine
from roost.errors import RoostError
from roost.formats import agent_wire as wire

log = structlog.get_logger()

POLL_S: Final = 20.0
SHORTEST_POLL_S: Final = 0.2
"""A server that answers at once with nothing new must not be asked in a tight loop."""
FACTS_EVERY_S: Final = 15.0
SHORTEST_REPORT_GAP_S: Final = 0.1
LONGEST_REPORT_PAUSE_S: Final = 10.0
"""Reports find out first that the server is back; the other loops then ask at once."""
FIRST_LOOK_S: Final = 3.0
LAST_REPORT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an agent was started."""

    directory: Path
    server: str
    invitation: Invitation
    asked: Asked = field(default_factory=Asked)
    host: str = "127.0.0.1"
    port_range: tuple[int, int]
    stop_engines: bool = False
    nvml: Callable[[], Any] | None = None
    """Instead of NVIDIA's own library."""


class Agent:
    """One agent on one directory; `run` returns after SIGTERM."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._directory = Directory(options.directory)
        self._server = Server(options.server, boot_id=procfs.boot_id())
        self._random = random.Random()  # noqa: S311 - spreads retries, hides nothing
        # Wall time that never jumps: what it says at the start, and from there the monotonic clock.
        self._clock_offset = time.time() - time.monotonic()
        self._started_at = self._now()
        self._changed = asyncio.Event()
        self._membership = Membership(
            self._server,
            self._directory,
            options.invitation,
            luck=self._random.random,
            joined_again=self._changed.set,
        )
        self._copied = Copied(now=time.monotonic, interval_s=lambda: self._interval)
        self._asking = Asking(self._membership, self._copied)
        self._obedience = Obedience(self._directory, lambda: self._membership.fleet)
        self._reading = Reading(
            options.asked,
            port_range=options.port_range,
            memory=self._directory.path / "gpus.json",
            nvml=options.nvml,
        )
        self._holders = Holders(options.nvml)
        self._reach = Reach()
        self._stopping = asyncio.Event()
        self._signals = 0
        self._sequence = 0
        self._interval = 5.0

    async def run(self) -> None:
        """Work until SIGTERM; raises `Refused` if the first join is, `Conflict` if another agent is
        here.
        """
        self._directory.lock()
        self._membership.restore()
        self._obedience.restore()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        # Whoever started this process may have held them back until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        async with probe.client() as http:
            engines = Engines(self._tools(http))
            # First what is there: no engine is started on a card that is gone since.
            await self._reading.read(self._membership.identity, engines)
            engines.restore(self._obedience.desired)
            try:
                await self._work(engines)
            finally:
                await engines.let_go()
                await self._server.close()
                self._reach.close()
                self._reading.close()

    async def _work(self, engines: Engines) -> None:
        await self._reading.read(self._membership.identity, engines)
        if not await self._until_stopped(self._membership.begin()):
            return
        await engines.first_look(within_s=FIRST_LOOK_S)
        log.info("agent.started", node=self._membership.node, identity=self._membership.identity)
        orders = Orders(self._server, engines)
        reports = asyncio.create_task(self._report_loop(engines))
        others = [
            asyncio.create_task(self._poll_loop("desired", lambda c: self._ask(c, engines))),
            asyncio.create_task(self._poll_loop("orders", lambda c: orders.take(c, wait=POLL_S))),
            asyncio.create_task(self._facts_loop(engines)),
            asyncio.create_task(self._copy_loop(engines)),
        ]
        loops = {reports, *others}
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for task in loops:
                if task.done():
                    # Loops don't end by themselves: this raises what went wrong.
                    task.result()
            if self._options.stop_engines:
                await cancel(others)
                await engines.stop(hurry=lambda: self._signals > 1)
                await cancel([reports])
                await self._last_report(engines)
        finally:
            await cancel([stopping, *loops])
            await orders.close()
        log.info("agent.stopped", engines_left=len(engines.ports()))

    # -- reporting -------------------------------------------------------------------------------

    async def _report_loop(self, engines: Engines) -> None:
        backoff = Backoff(self._random.random, first=1, longest=LONGEST_REPORT_PAUSE_S)
        while True:
            self._changed.clear()
            pause = self._interval
            if await self._asking.attempt("report", backoff, lambda c: self._report(c, engines)):
                backoff.worked()
            else:
                await self._asking.pause(max(backoff.next(), SHORTEST_REPORT_GAP_S))
                continue
            await asyncio.sleep(SHORTEST_REPORT_GAP_S)
            await first(self._changed.wait(), pause - SHORTEST_REPORT_GAP_S)

    async def _report(self, credential: str, engines: Engines) -> None:
        self._sequence += 1
        answer = await self._server.report(credential, self.report(engines))
        self._report_every(answer.report_interval_s)

    def report(self, engines: Engines) -> wire.Report:
        """Everything this agent sees, now."""
        said = () if self._obedience.problem is None else (self._obedience.problem,)
        return wire.Report(
            identity=self._membership.identity,
            sequence=self._sequence,
            started_at=self._started_at,
            facts=self._reading.facts,
            shards=engines.observed(),
            problems=(*self._reading.problems, *engines.problems, *said),
            agent_version=self._membership.version,
            boot_id=procfs.boot_id(),
            hostname=socket.gethostname(),
            address=self._options.host,
            port_range=self._options.port_range,
            ports_taken=self._reading.ports_taken,
        )

    def _report_every(self, seconds: float) -> None:
        self._interval = min(max(seconds, 0.5), 60)

    async def _last_report(self, engines: Engines) -> None:
        credential = self._membership.credential
        if credential is None:
            return
        try:
            async with asyncio.timeout(LAST_REPORT_S):
                await self._report(credential.credential, engines)
        except (RoostError, TimeoutError) as cause:
            log.info("agent.last_report_not_sent", cause=str(cause))

    async def _facts_loop(self, engines: Engines) -> None:
        while True:
            await asyncio.sleep(FACTS_EVERY_S)
            self._membership.keep()
            if await self._reading.read(self._membership.identity, engines):
                self._changed.set()

    # -- obeying ---------------------------------------------------------------------------------

    async def _poll_loop(self, what: str, ask: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        backoff = Backoff(self._random.random)
        while True:
            asked_at = self._now()
            if not await self._asking.attempt(what, backoff, ask):
                await self._asking.pause(backoff.next())
                continue
            backoff.worked()
            await asyncio.sleep(max(0.0, SHORTEST_POLL_S - (self._now() - asked_at)))

    async def _ask(self, credential: str, engines: Engines) -> None:
        known = self._obedience.known
        desired = await self._server.desired(credential, known, wait=POLL_S)
        if desired is None:
            return
        new = self._obedience.accept(desired)
        self._report_every(desired.report_interval_s)
        if new:
            engines.obey(desired)

    async def _copy_loop(self, engines: Engines) -> None:
        """What a copied directory orders is another machine's: no engine stays for it."""
        while True:
            await self._copied.certain()
            log.error(
                "agent.is_a_copy",
                node=self._membership.node,
                engines="stop",
                hint=f"to start anew: stop the agent, remove {self._directory.path}, and join",
            )
            self._obedience.forget()
            await engines.stop(hurry=lambda: False)
            await self._copied.over()
            log.info("agent.is_the_node", node=self._membership.node)
            if self._obedience.desired is not None:
                # It came while engines were still stopping.
                engines.obey(self._obedience.desired)

    # -- stopping --------------------------------------------------------------------------------

    def _signalled(self) -> None:
        self._signals += 1
        self._stopping.set()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            await cancel([task])
            return False
        task.result()
        return True

    # -- what shards work with -------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset

    def _program(self, engine: Engine) -> tuple[str, ...]:
        return self._options.asked.programs.start_of(engine)

    def _tools(self, http: httpx2.AsyncClient) -> Tools:
        return Tools(
            agent=self._membership.identity,
            fleet=lambda: self._membership.fleet,
            shelf=Shelf(self._directory.shards),
            logs=self._directory.logs,
            model_directories=self._options.asked.model_directories,
            exists=self._reach.exists,
            program=self._program,
            gone=lambda uuids: gone(self._reading.facts.gpus, uuids),
            on_cards=self._holders.of,
            http=http,
            now=self._now,
            luck=self._random.random,
            changed=self._changed.set,
            threads=cpus(self._options.asked.root),
            boot_id=procfs.boot_id(),
            env=os.environ,
        )
