"""The agent's process: join, report, obey, and keep the engines whatever becomes of the server."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import structlog

from roost.agent import facts, logs, programs
from roost.agent.backoff import Backoff
from roost.agent.directory import Credential, Directory
from roost.agent.facts import Asked, ports
from roost.agent.facts.gpus import Reader, gone
from roost.agent.facts.host import Reader as HostReader
from roost.agent.facts.processes import Ours
from roost.agent.facts.reach import Reach
from roost.agent.facts.remembered import Memory
from roost.agent.server import Server
from roost.agent.supervise import probe, procfs
from roost.agent.supervise.engines import Engines
from roost.agent.supervise.kept import Shelf
from roost.agent.supervise.process import cpus
from roost.agent.supervise.shard import Tools
from roost.domain.node import Facts
from roost.domain.profile import Engine
from roost.domain.replica import Desired
from roost.errors import NotFound, Refused, RoostError, Unavailable, UserError
from roost.formats import agent_wire as wire

T = TypeVar("T")

log = structlog.get_logger()

POLL_S: Final = 20.0
FACTS_EVERY_S: Final = 15.0
FACTS_WITHIN_S: Final = 5.0
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
    name: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
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
        self._identity = ""
        self._version = _version()
        self._credential: Credential | None = None
        self._desired: Desired | None = None
        self._facts = Facts()
        self._problems: tuple[str, ...] = ()
        self._server_problem: str | None = None
        self._ports_taken: tuple[int, ...] = ()
        self._reach = Reach()
        self._machine = HostReader(options.asked.root, options.asked.model_directories)
        self._cards = Reader(
            options.asked.gpus,
            library=options.nvml,
            memory=Memory(self._directory.path / "gpus.json"),
        )
        self._reading: asyncio.Future[tuple[Facts, tuple[str, ...]]] | None = None
        self._changed = asyncio.Event()
        self._answers = asyncio.Event()
        self._stopping = asyncio.Event()
        self._signals = 0
        self._sequence = 0
        self._interval = 5.0
        self._joining = asyncio.Lock()
        self._orders: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Work until SIGTERM; raises `Refused` if the first join is, `Conflict` if another agent is
        here.
        """
        self._directory.lock()
        self._identity = self._directory.identity()
        self._credential = self._directory.credential()
        self._desired = self._directory.desired()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        async with probe.client() as http:
            engines = Engines(self._tools(http))
            engines.restore(self._desired)
            try:
                await self._work(engines)
            finally:
                await engines.let_go()
                await self._server.close()
                self._reach.close()
                if self._reading is None:
                    self._machine.close()

    async def _work(self, engines: Engines) -> None:
        await self._read_facts(engines)
        if not await self._until_stopped(self._join_first()):
            return
        await engines.first_look(within_s=FIRST_LOOK_S)
        log.info("agent.started", node=self._node, identity=self._identity)
        reports = asyncio.create_task(self._report_loop(engines))
        others = [
            asyncio.create_task(self._desired_loop(engines)),
            asyncio.create_task(self._orders_loop(engines)),
            asyncio.create_task(self._facts_loop(engines)),
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
                await _cancel(others)
                await engines.stop(hurry=lambda: self._signals > 1)
                await _cancel([reports])
                await self._last_report(engines)
        finally:
            await _cancel([stopping, *loops, *self._orders.values()])
        log.info("agent.stopped", engines_left=len(engines.ports()))

    # -- joining ---------------------------------------------------------------------------------

    async def _join_first(self) -> None:
        if self._credential is not None:
            if self._credential.server != self._server.url:
                log.info("agent.server_moved", server=self._server.url)
            return
        if self._token() is None:
            raise Refused(
                "this node has not joined a fleet, and there is no token to join with",
                hint="make one with: roost ctl token create; then: roost agent --join TOKEN",
            )
        backoff = Backoff(self._random.random)
        while True:
            try:
                await self._join()
            except UserError:
                raise
            except Unavailable as cause:
                pause = backoff.next()
                log.warning("agent.join_waits", cause=cause.message, again_in_s=round(pause, 1))
                await asyncio.sleep(pause)
            else:
                return

    async def _join(self) -> None:
        token = self._token()
        if token is None:
            raise Refused("the server does not know this node any more, and there is no token")
        joined = await self._server.join(
            wire.Join(
                token=token,
                name=self._options.name,
                identity=self._identity,
                boot_id=procfs.boot_id(),
                agent_version=self._version,
            )
        )
        credential = Credential(
            server=self._server.url,
            fleet=joined.fleet,
            node=joined.node,
            credential=joined.credential,
        )
        self._directory.keep_credential(credential)
        self._credential = credential
        log.info("agent.joined", fleet=joined.fleet, node=joined.node)

    async def _join_again(self, refused: str) -> None:
        """The credential that was `refused` is of no more use: buy another one, with the same
        identity.
        """
        async with self._joining:
            if self._credential is None or self._credential.credential != refused:
                return
            await self._join()
        self._changed.set()

    def _token(self) -> str | None:
        """As it is now: whoever runs the server may have written a new one into the file."""
        if self._options.token_file is not None:
            try:
                return self._options.token_file.read_text().strip() or None
            except OSError as cause:
                log.warning("agent.no_token_file", cause=str(cause))
                return None
        return self._options.token

    # -- reporting -------------------------------------------------------------------------------

    async def _report_loop(self, engines: Engines) -> None:
        backoff = Backoff(self._random.random, first=1, longest=LONGEST_REPORT_PAUSE_S)
        while True:
            self._changed.clear()
            pause = self._interval
            if await self._attempt("report", backoff, lambda c: self._report(c, engines)):
                backoff.worked()
            else:
                await self._pause(max(backoff.next(), SHORTEST_REPORT_GAP_S))
                continue
            await asyncio.sleep(SHORTEST_REPORT_GAP_S)
            await _first(self._changed.wait(), pause - SHORTEST_REPORT_GAP_S)

    async def _report(self, credential: str, engines: Engines) -> None:
        self._sequence += 1
        answer = await self._server.report(credential, self.report(engines))
        self._interval = min(max(answer.report_interval_s, 0.5), 60)

    def report(self, engines: Engines) -> wire.Report:
        """Everything this agent sees, now."""
        said = () if self._server_problem is None else (self._server_problem,)
        return wire.Report(
            identity=self._identity,
            sequence=self._sequence,
            started_at=self._started_at,
            facts=self._facts,
            shards=engines.observed(),
            problems=(*self._problems, *engines.problems, *said),
            agent_version=self._version,
            boot_id=procfs.boot_id(),
            hostname=socket.gethostname(),
            address=self._options.host,
            port_range=self._options.port_range,
            ports_taken=self._ports_taken,
        )

    async def _last_report(self, engines: Engines) -> None:
        if self._credential is None:
            return
        try:
            async with asyncio.timeout(LAST_REPORT_S):
                await self._report(self._credential.credential, engines)
        except (RoostError, TimeoutError) as cause:
            log.info("agent.last_report_not_sent", cause=str(cause))

    # -- obeying ---------------------------------------------------------------------------------

    async def _desired_loop(self, engines: Engines) -> None:
        backoff = Backoff(self._random.random)
        while True:
            asked_at = self._now()
            if not await self._attempt("desired", backoff, lambda c: self._ask(c, engines)):
                await self._pause(backoff.next())
                continue
            backoff.worked()
            # A server that answers at once with nothing new must not be asked in a tight loop.
            await asyncio.sleep(max(0.0, 0.2 - (self._now() - asked_at)))

    async def _ask(self, credential: str, engines: Engines) -> None:
        fleet = self._fleet()
        known = self._desired if self._desired and self._desired.fleet == fleet else None
        desired = await self._server.desired(credential, known, wait=POLL_S)
        if desired is not None:
            self._obey(desired, engines)

    def _obey(self, desired: Desired, engines: Engines) -> None:
        problem = refusal(desired, self._desired, fleet=self._fleet())
        if problem is not None:
            if problem != self._server_problem:
                log.error("agent.desired_refused", cause=problem)
            self._server_problem = problem
            raise Unavailable(problem)
        self._server_problem = None
        self._interval = min(max(desired.report_interval_s, 0.5), 60)
        if desired == self._desired:
            return
        try:
            self._directory.keep_desired(desired)
        except OSError as cause:
            # A full disk: obeying may be what empties it, and the next agent process asks again
            # anyway.
            self._server_problem = f"the desired state cannot be kept on disk: {cause}"
            log.warning("agent.desired_not_kept", cause=str(cause))
        self._desired = desired
        log.info(
            "agent.obeys",
            revision=desired.revision,
            epoch=desired.epoch,
            run=len(desired.run),
            stop=len(desired.stop),
        )
        engines.obey(desired)

    # -- orders ----------------------------------------------------------------------------------

    async def _orders_loop(self, engines: Engines) -> None:
        backoff = Backoff(self._random.random)
        while True:
            asked_at = self._now()
            if not await self._attempt("orders", backoff, lambda c: self._take(c, engines)):
                await self._pause(backoff.next())
                continue
            backoff.worked()
            await asyncio.sleep(max(0.0, 0.2 - (self._now() - asked_at)))

    async def _take(self, credential: str, engines: Engines) -> None:
        orders = await self._server.orders(credential, wait=POLL_S)
        for order in orders.logs:
            if order.id in self._orders:
                continue
            task = asyncio.create_task(self._send_log(credential, order, engines))
            self._orders[order.id] = task
            task.add_done_callback(partial(self._order_done, order.id))

    def _order_done(self, order: str, _: object) -> None:
        self._orders.pop(order, None)

    async def _send_log(self, credential: str, order: wire.LogOrder, engines: Engines) -> None:
        chunks = self._log_of(order, engines)
        try:
            await self._server.send_log(credential, order.id, chunks)
        except RoostError as cause:
            # Mostly: whoever read it has gone.
            log.info("agent.log_not_sent", order=order.id, cause=cause.message)

    async def _log_of(self, order: wire.LogOrder, engines: Engines) -> AsyncIterator[bytes]:
        shard = engines.shard(order.placement, order.rank)
        if shard is None:
            yield f"[roost: this node has no shard {order.rank} of {order.placement}]\n".encode()
            return
        path = shard.log.previous if order.previous else shard.log.path
        if not path.exists():
            which = "previous run" if order.previous else "run"
            yield f"[roost: there is no log of a {which} of {shard.spec.replica}]\n".encode()
            return
        async for chunk in logs.stream(
            path,
            tail_lines=order.tail_lines,
            follow=order.follow and not order.previous,
            secret=shard.running.key,
        ):
            yield chunk

    # -- facts -----------------------------------------------------------------------------------

    async def _facts_loop(self, engines: Engines) -> None:
        while True:
            await asyncio.sleep(FACTS_EVERY_S)
            before = self._facts.engines, self._facts.gpus
            await self._read_facts(engines)
            if (self._facts.engines, self._facts.gpus) != before:
                self._changed.set()

    async def _read_facts(self, engines: Engines) -> None:
        """In a thread and with a limit: a filesystem whose server is away may hang for ever."""
        if self._reading is None:
            pids, given = engines.on_cards()
            ours = Ours(agent=self._identity, pids=pids, gpus=given)
            self._reading = _in_thread(
                lambda: facts.read(self._options.asked, self._cards, ours, self._machine)
            )
        done, _ = await asyncio.wait({self._reading}, timeout=FACTS_WITHIN_S)
        if not done:
            self._problems = (
                f"reading facts takes more than {FACTS_WITHIN_S:g} s: a filesystem may hang",
            )
            return
        self._facts, self._problems = self._reading.result()
        self._reading = None
        self._ports_taken = ports.taken(
            self._options.asked.root, self._options.port_range, engines.ports()
        )

    # -- small things ----------------------------------------------------------------------------

    async def _attempt(
        self, what: str, backoff: Backoff, ask: Callable[[str], Awaitable[None]]
    ) -> bool:
        """Whether it worked; says so only when that changes. A refused credential is replaced if it
        can be.
        """
        credential = self._credential
        if credential is None:
            return False
        try:
            await ask(credential.credential)
        except (Refused, NotFound) as cause:
            self._say(what, backoff, cause)
            try:
                await self._join_again(credential.credential)
            except RoostError as again:
                self._say(f"{what}: join", backoff, again)
        except RoostError as cause:
            self._say(what, backoff, cause)
        else:
            if backoff.failing:
                log.info("agent.server_answers_again", what=what)
                self._answers.set()
                self._answers = asyncio.Event()
            return True
        return False

    async def _pause(self, seconds: float) -> None:
        """Until then, or until another loop finds that the server answers again."""
        await _first(self._answers.wait(), seconds)

    def _say(self, what: str, backoff: Backoff, cause: RoostError) -> None:
        if not backoff.failing:
            hint = {} if cause.hint is None else {"hint": cause.hint}
            log.warning("agent.server_away", what=what, cause=cause.message, engines="stay", **hint)

    def _signalled(self) -> None:
        self._signals += 1
        self._stopping.set()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            await _cancel([task])
            return False
        task.result()
        return True

    def _fleet(self) -> str:
        return "" if self._credential is None else self._credential.fleet

    @property
    def _node(self) -> str:
        return "" if self._credential is None else self._credential.node

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset

    def _program(self, engine: Engine) -> tuple[str, ...]:
        asked = self._options.asked
        return programs.start_of(
            engine, llama=asked.llama_server, allow_command=asked.allow_command, env=os.environ
        )

    def _tools(self, http: httpx2.AsyncClient) -> Tools:
        return Tools(
            agent=self._identity,
            fleet=self._fleet,
            shelf=Shelf(self._directory.shards),
            logs=self._directory.logs,
            model_directories=self._options.asked.model_directories,
            exists=self._reach.exists,
            program=self._program,
            gone=lambda uuids: gone(self._facts.gpus, uuids),
            http=http,
            now=self._now,
            luck=self._random.random,
            changed=self._changed.set,
            threads=cpus(self._options.asked.root),
            boot_id=procfs.boot_id(),
            env=os.environ,
        )


def _version() -> str:
    try:
        return version("roost")
    except PackageNotFoundError:
        return ""


def _in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Like an executor's, and no reason to wait at the end: a thread that hangs ends with the
    process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, cause: BaseException | None) -> None:
        if future.cancelled():
            return
        if cause is not None:
            future.set_exception(cause)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # without a cause there is a result

    def run() -> None:
        result, cause = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the future raises it
            cause = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, cause)

    threading.Thread(target=run, daemon=True, name="facts").start()
    return future


def refusal(desired: Desired, known: Desired | None, *, fleet: str) -> str | None:
    """Why a desired state is not obeyed; `None`: it is."""
    if desired.fleet != fleet:
        return (
            f"the server speaks for the fleet {desired.fleet}, this node joined {fleet}: not obeyed"
        )
    if known is None or known.fleet != fleet:
        return None
    offered = (desired.incarnation, desired.epoch, desired.revision)
    highest = (known.incarnation, known.epoch, known.revision)
    if offered < highest:
        return (
            f"the server's desired state is older (incarnation, epoch, revision {offered}) than "
            f"the one obeyed ({highest}): not obeyed"
        )
    return None


async def _first(waiting: Coroutine[Any, Any, object], seconds: float) -> None:
    task = asyncio.ensure_future(waiting)
    await asyncio.wait({task}, timeout=max(0.0, seconds))
    await _cancel([task])


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
