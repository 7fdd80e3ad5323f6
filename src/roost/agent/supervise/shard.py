"""One shard on this node: look, ask `reconcile.supervise` what to do, do it."""

import asyncio
import contextlib
import os
from dataclasses import replace
from typing import Final, assert_never

import structlog

from roost.agent.supervise import causes, process, procfs
from roost.agent.supervise.answers import Answers
from roost.agent.supervise.command_line import command_line
from roost.agent.supervise.kept import Kept, file_stem
from roost.agent.supervise.log import Log
from roost.agent.supervise.process import Mark, Process
from roost.agent.supervise.tools import Tools
from roost.domain.replica import ObservedShard, ReplicaState, ShardSpec
from roost.engines.adapter import Exit
from roost.errors import RoostError
from roost.reconcile import engine_life, supervise
from roost.reconcile.engine_life import (
    Ended,
    Forget,
    Kill,
    Left,
    Life,
    Limits,
    Phase,
    Seen,
    Start,
    Terminate,
)

log = structlog.get_logger()

BLIND_LOOK_S: Final = 1.0
"""Where the kernel doesn't tell when a process ends, it is looked at so often."""

_UP: Final = frozenset({Phase.STARTING, Phase.LOADING, Phase.READY})


class Shard:
    """The supervisor of one engine; `run` ends when the engine was stopped and is gone."""

    def __init__(self, spec: ShardSpec, tools: Tools) -> None:
        self.spec = spec
        """What the next start uses: the newest from the server."""
        self.running = spec
        """What the present process was started with."""
        self.wanted = True
        self.known = True
        """It is in the desired state; else an orphan, left running and reported with its spec."""
        self.hurry = False
        """Stop without draining, and without the time to end by itself."""
        self.life = engine_life.first_life(engine_life.group_start(spec), now=tools.now())
        self.log = Log(tools.logs / f"{file_stem(spec.placement, spec.rank)}.log")
        self.looked = asyncio.Event()
        """Set after the first look: before it, nothing is known to report."""
        self._tools = tools
        self._process: Process | None = None
        self._first: tuple[int, int] | None = None
        self._poke = asyncio.Event()
        self._answers = Answers(tools.http, tools.now)
        self._told: ObservedShard | None = None
        self._kept: Kept | None = None
        self._said_unmeasured: set[str] = set()

    @property
    def over(self) -> bool:
        """It was stopped and is gone."""
        return self.life.phase is Phase.GONE

    @property
    def present(self) -> bool:
        """A process of it is known to live."""
        return self._process is not None or bool(process.living(self.mark, self._first))

    @property
    def mark(self) -> Mark:
        """What its processes carry."""
        tools = self._tools
        return Mark(
            agent=tools.agent,
            fleet=tools.fleet(),
            placement=self.spec.placement,
            rank=self.spec.rank,
        )

    @property
    def _asked(self) -> ShardSpec:
        """As it was started, with the names that its load is found under now."""
        return replace(self.running, metrics=self.spec.metrics)

    def adopt(self, kept: Kept, found: int | None) -> None:
        """Take over what an earlier agent process left: by its file, or by the marks (`found`)."""
        now = self._tools.now()
        self.running = kept.spec
        self.life = replace(
            self.life,
            starts=kept.starts,
            restarts=kept.restarts,
            failures=kept.failures,
            cause=kept.cause,
            holds=kept.up,
            generation=self.life.generation if kept.generation is None else kept.generation,
        )
        self._kept = kept
        if kept.pid is not None and kept.started is not None:
            if kept.boot_id != self._tools.boot_id:
                self._ended_meanwhile("the machine was restarted")
                return
            self._first = (kept.pid, kept.started)
            self._process = process.adopt(kept.pid, kept.started)
        if self._process is None and found is not None:
            # Made, and the agent died before it could write the number down.
            holder = procfs.stat(found)
            if holder is not None:
                self._first = (found, holder.started)
                self._process = process.adopt(found, holder.started)
        if self._process is None:
            if kept.up:
                self._ended_meanwhile(None)
            else:
                self.life = replace(self.life, due=_due(kept, now=now))
            return
        if not self.life.starts:
            self.life = replace(self.life, starts=1)
        ready = kept.ready_since is not None
        self.life = replace(
            self.life,
            phase=Phase.READY if ready else Phase.STARTING,
            since=kept.ready_since if kept.ready_since is not None else now,
            ready_since=kept.ready_since,
            progress_at=now,
            heard_at=now,
        )
        log.info("engine.adopted", replica=self.spec.replica, pid=self._process.pid)

    def _ended_meanwhile(self, why: str | None) -> None:
        now = self._tools.now()
        ended = self._why(None) if why is None else Ended(cause=why)
        failed = supervise.failed(self.life, ended, now=now, luck=self._tools.luck())
        # The wait has been served by the agent's absence.
        self.life = supervise.hurried(failed, now=now)

    def want(self, spec: ShardSpec) -> None:
        """It is in the desired state; another port takes effect at the next start, which is then at
        once, or with its group's.
        """
        self.known = True
        if spec != self.spec:
            moved = (spec.host, spec.port) != (self.spec.host, self.spec.port)
            self.spec = spec
            if moved:
                self.life = supervise.hurried(self.life, now=self._tools.now())
            self._poke.set()

    def stop(self, *, hurry: bool = False) -> None:
        """Drain and stop it."""
        if self.wanted or hurry != self.hurry:
            self.wanted = False
            self.hurry = hurry
            self._poke.set()

    def observed(self) -> ObservedShard:
        """As it is reported."""
        state = engine_life.state_of(self.life)
        serves = state in {ReplicaState.READY, ReplicaState.DRAINING}
        alive = self._process is not None
        cause = engine_life.cause_of(self.life)
        if engine_life.is_silent(self.life):
            cause = (
                f"no good answer to {self.life.bad_answers} health checks: {self._answers.health}"
            )
        return ObservedShard(
            placement=self.spec.placement,
            rank=self.spec.rank,
            replica=self.spec.replica,
            state=state,
            since=self.life.since,
            pid=self._process.pid if self._process is not None else None,
            port=self.running.port if alive else self.spec.port,
            restarts=self.life.restarts,
            generation=self.life.generation or 0,
            cause=cause,
            due=engine_life.due_of(self.life),
            port_taken=self.life.port_taken,
            slots=self._answers.slots,
            load=self._answers.load if serves else None,
            unmeasured=self._answers.unmeasured if serves else (),
            spec=None if self.known else self.running,
        )

    async def run(self) -> None:
        """Supervise until it was stopped and is gone."""
        while not self.over:
            self._poke.clear()
            try:
                await self._turn()
            except (OSError, RoostError) as cause:
                # A full disk or too many open files must not end the supervision of what runs.
                log.warning("shard.turn_failed", replica=self.spec.replica, cause=str(cause))
                await asyncio.sleep(1)
            self.looked.set()
            if self.over:
                return
            pause = engine_life.next_look(self.life, now=self._tools.now())
            await self._sleep(pause)

    async def _turn(self) -> None:
        seen = await self._look()
        profile = self.running.profile
        patience = Limits(
            load_timeout_s=profile.load_timeout_s, drain_timeout_s=profile.drain_timeout_s
        )
        if self.spec.rank > 0:
            # Rank 0 has the requests in flight, and has ended.
            patience = replace(patience, drain_timeout_s=0)
        if self.hurry:
            patience = replace(patience, drain_timeout_s=0, grace_s=0)
        was = self.life
        self.life, actions = supervise.step(
            self.life,
            seen,
            wanted=self.wanted,
            limits=patience,
            now=self._tools.now(),
            luck=self._tools.luck(),
            start=engine_life.group_start(self.spec),
        )
        if self.life.phase is not was.phase:
            log.info(
                "shard.phase",
                replica=self.spec.replica,
                placement=self.spec.placement,
                phase=self.life.phase.value,
                was=was.phase.value,
                cause=self.life.cause,
            )
        elif self.life.cause is not None and self.life.cause != was.cause:
            log.warning("shard.held_up", replica=self.spec.replica, cause=self.life.cause)
        for action in actions:
            self._perform(action)
        if not seen.running and self._process is not None and self.life.phase is not Phase.STARTING:
            self._let_go()
        self._keep()
        await self._learn(was)
        self._say_unmeasured()
        self._tell()

    async def _look(self) -> Seen:
        if not self._is_running:
            return await self._look_at_its_end()
        answers, size, in_flight, scraped = self._answers, None, None, False
        if self.life.phase in _UP:
            self.log.trim()
            size = self.log.size()
            await answers.ask_health(self.running)
        if self.life.phase in {Phase.READY, Phase.DRAINING}:
            await answers.ask_load(self._asked)
            in_flight, scraped = answers.in_flight, answers.load is not None
        if not self._is_running:
            # It ended while it was asked.
            return await self._look_at_its_end()
        return Seen(
            running=True,
            health=answers.health,
            log_bytes=size,
            in_flight=in_flight,
            scraped=scraped,
        )

    @property
    def _is_running(self) -> bool:
        return self._process is not None and self._process.running

    async def _look_at_its_end(self) -> Seen:
        self._answers.health = None
        ended = None
        if self._process is not None and self.life.phase in _UP:
            ended = self._why(self._process.status)
        others, left = process.living(self.mark, self._first), engine_life.NOTHING_LEFT
        if not others and self.life.holds and self._is_next_due:
            others, left = await self._look_at_what_is_left()
        if not others and self._process is None:
            # From here on the number may be given to others, whose session is none of ours.
            self._first = None
        return Seen(running=False, others=others, left=left, ended=ended)

    @property
    def _is_next_due(self) -> bool:
        """What an engine holds matters to the next start and to the end."""
        if not self.wanted:
            return True
        start = engine_life.group_start(self.spec)
        return supervise.next_is_due(self.life, start=start, now=self._tools.now())

    async def _look_at_what_is_left(self) -> tuple[tuple[int, ...], Left]:
        """Processes of it that its cards' driver lists, and what else isn't seen free."""
        spec = self.running
        listed = await self._tools.on_cards(spec.gpu_uuids) if spec.gpu_uuids else None
        found = process.sorted_out(listed or (), self.mark, self._first)
        return found.ours, Left(port=causes.taken_port(spec), on_cards=found.vanished)

    async def _learn(self, was: Life) -> None:
        answers = self._answers
        if self.life.phase is not Phase.READY:
            return
        if was.phase is not Phase.READY or answers.slots is None:
            await answers.ask_slots(self.running)
            if answers.load is None:
                await answers.ask_load(self._asked)

    def _say_unmeasured(self) -> None:
        """Once for each series, however often it is looked for."""
        new = [one for one in self._answers.unmeasured if one not in self._said_unmeasured]
        if new:
            self._said_unmeasured.update(new)
            log.warning(
                "load.not_measured",
                replica=self.spec.replica,
                placement=self.spec.placement,
                missing=new,
            )

    def _perform(self, action: engine_life.Action) -> None:
        match action:
            case Start():
                self._start()
            case Terminate(because=because):
                log.info("engine.terminate", replica=self.spec.replica, because=because)
                if self._process is not None:
                    self._process.terminate()
            case Kill(because=because):
                pids = process.kill(self.mark, self._first)
                log.warning(
                    "engine.kill", replica=self.spec.replica, pids=list(pids), because=because
                )
            case Forget(because=because):
                log.info("engine.gone", replica=self.spec.replica, because=because)
                self._let_go()
                self._tools.shelf.remove(self.spec.placement, self.spec.rank)
                self.log.remove()
                self._kept = None
            case _:
                assert_never(action)

    def _start(self) -> None:
        tools, spec = self._tools, self.spec
        self._let_go()
        try:
            line = command_line(spec, tools, self.mark)
        except RoostError as cause:
            self._failed_to_start(Ended(cause=cause.message))
            return
        if (port := causes.taken_port(spec)) is not None:
            self._failed_to_start(causes.port_taken(spec.host, port))
            return
        self.running = spec
        before = self.life
        self.life = supervise.started(before, now=tools.now())
        try:
            # On disk before there is a process: whoever comes after a crash knows to look for its
            # marks.
            self._intend(spec)
            output = self.log.open()
            try:
                self._process = process.launch(line.argv, line.env, output)
            finally:
                os.close(output)
        except (OSError, ValueError) as cause:
            self.life = before
            self._failed_to_start(Ended(cause=causes.not_started(line.argv[0], cause)))
            return
        self._first = (self._process.pid, self._process.started)
        self._answers.slots = None
        log.info(
            "engine.started",
            replica=spec.replica,
            placement=spec.placement,
            pid=self._process.pid,
            port=spec.port,
            restarts=self.life.restarts,
        )

    def _intend(self, spec: ShardSpec) -> None:
        before = self._kept
        try:
            self._keep(force=True)
        except OSError as cause:
            # A full disk must not keep an engine from coming back: an older file of the same engine
            # does too.
            if before is None or before.spec != spec:
                raise
            log.warning("shard.not_kept", replica=spec.replica, cause=str(cause))

    def _failed_to_start(self, ended: Ended) -> None:
        log.warning("engine.not_started", replica=self.spec.replica, cause=ended.cause)
        tools = self._tools
        self.life = supervise.failed(self.life, ended, now=tools.now(), luck=tools.luck())

    def _why(self, status: int | None) -> Ended:
        return causes.why(Exit(status=status, log=self.log.tail()), self.running)

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._answers.forget_load()

    def _keep(self, *, force: bool = False) -> None:
        if self.life.phase is Phase.GONE:
            return
        life, live = self.life, self._process
        kept = Kept(
            spec=self.running,
            up=life.phase is not Phase.WAITING,
            due=life.due,
            generation=life.generation,
            pid=None if live is None else live.pid,
            started=None if live is None else live.started,
            boot_id=self._tools.boot_id,
            starts=life.starts,
            restarts=life.restarts,
            failures=life.failures,
            cause=life.cause,
            ready_since=life.ready_since,
        )
        if force or kept != self._kept:
            self._tools.shelf.write(kept)
            self._kept = kept

    def _tell(self) -> None:
        observed = replace(self.observed(), load=None)
        if observed != self._told:
            self._told = observed
            self._tools.changed()

    async def _sleep(self, seconds: float) -> None:
        """Until then, or a poke, or the end of the process."""
        if self._process is not None and not self._process.told:
            seconds = min(seconds, BLIND_LOOK_S)
        waits = [asyncio.ensure_future(self._poke.wait())]
        if self._process is not None and not self._process.over.is_set():
            waits.append(asyncio.ensure_future(self._process.over.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await wait


def _due(kept: Kept, *, now: float) -> float | None:
    """A clock that was set back must not make it wait for ever."""
    return None if kept.due is None else min(kept.due, now + supervise.LONGEST_DELAY_S)
