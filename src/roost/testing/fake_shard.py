"""One engine of a made-up node, in this process: supervised as a real one is, by the same rules.

What a real agent does to a process is done to a `FakeEngine` here: a start, SIGTERM, SIGKILL, and
the look at how it is. Nothing is asked over HTTP, so that thousands fit.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_never

from roost.agent.supervise import causes, probe
from roost.agent.supervise.command_line import command_line
from roost.agent.supervise.kept import file_stem
from roost.agent.supervise.log import Log
from roost.agent.supervise.process import Mark
from roost.agent.supervise.tools import Tools
from roost.agent.tasks import first
from roost.domain.replica import Load, ObservedShard, ReplicaState, ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Exit
from roost.errors import RoostError
from roost.reconcile import engine_life, supervise
from roost.reconcile.engine_life import (
    Ended,
    Forget,
    Health,
    Kill,
    Limits,
    Phase,
    Seen,
    Start,
    Terminate,
)
from roost.testing.fake_engine import key_of, live
from roost.testing.fake_http import FakeEngine
from roost.testing.fake_knobs import PROGRAM, knobs
from roost.testing.fake_ranks import Ranks
from roost.testing.faults import LOOPS

_KILLED: Final = -9
_NO_LOOK_S: Final = 3600.0
_LINES_PER_TRIM: Final = 1000


class FakeShard:
    """One shard; `run` ends when it was stopped."""

    def __init__(self, spec: ShardSpec, tools: Tools) -> None:
        self.spec = spec
        """What the next start uses."""
        self.running = spec
        """What the present run was started with."""
        self.known = True
        """It is in the desired state; else an orphan, left running and reported with its spec."""
        self.loops = False
        """It ends soon after each start."""
        self.log = Log(tools.logs / f"{file_stem(spec.placement, spec.rank)}.log")
        self._tools = tools
        self._wanted = True
        self._hurry = False
        self._life = engine_life.first_life(engine_life.group_start(spec), now=tools.now())
        self._engine: FakeEngine | None = None
        self._work: asyncio.Task[None] | None = None
        self._status: int | None = None
        """Of the engine that is still kept, and has ended."""
        self._poke = asyncio.Event()
        self._told: ObservedShard | None = None
        self._lines = 0

    @property
    def over(self) -> bool:
        """It was stopped and is gone."""
        return self._life.phase is Phase.GONE

    @property
    def lives(self) -> bool:
        """An engine runs."""
        return self._engine is not None and self._status is None

    # -- what is asked of it ---------------------------------------------------------------------

    def want(self, spec: ShardSpec) -> None:
        """It is in the desired state; another port takes effect at the next start, which is then at
        once.
        """
        self.known = True
        if spec == self.spec:
            return
        moved = (spec.host, spec.port) != (self.spec.host, self.spec.port)
        self.spec = spec
        if moved:
            self._life = supervise.hurried(self._life, now=self._tools.now())
        self._poke.set()

    def stop(self, *, hurry: bool = False) -> None:
        """Drain and stop it."""
        if self._wanted or hurry != self._hurry:
            self._wanted, self._hurry = False, hurry
            self._poke.set()

    def crash(self, last_words: str) -> None:
        """It ends with exit status 1."""
        if self._engine is not None and self.lives:
            self._engine.say(last_words)
            self._engine.leave(1)

    def loop(self) -> None:
        """It crashes, now and at every start."""
        self.loops = True
        self.crash(LOOPS)

    def hang(self) -> None:
        """It answers nobody."""
        if self._engine is not None:
            self._engine.hang()
            self._poke.set()

    def heal(self) -> None:
        """It ends by itself no more, and goes on where it hung."""
        self.loops = False
        if self._engine is not None:
            self._engine.recover()
        self._life = supervise.hurried(self._life, now=self._tools.now())
        self._poke.set()

    @property
    def hangs(self) -> bool:
        """It answers nobody now."""
        return self._engine is not None and self.lives and self._engine.hung

    def lose_power(self) -> None:
        """It is gone without a word; nobody looks after it until `boot`."""
        self._let_go()

    def boot(self) -> None:
        """The machine is up again, and starts what it ran."""
        if self._life.phase is not Phase.WAITING:
            ended = Ended(cause="the machine was restarted")
            life = supervise.failed(
                self._life, ended, now=self._tools.now(), luck=self._tools.luck()
            )
            self._life = supervise.hurried(life, now=self._tools.now())

    # -- what is seen of it ----------------------------------------------------------------------

    def observed(self) -> ObservedShard:
        """As it is reported."""
        state = engine_life.state_of(self._life)
        serves = state in {ReplicaState.READY, ReplicaState.DRAINING}
        cause = engine_life.cause_of(self._life)
        if engine_life.is_silent(self._life) and self._engine is not None:
            health = self._health(self._engine)
            cause = f"no good answer to {self._life.bad_answers} health checks: {health}"
        return ObservedShard(
            placement=self.spec.placement,
            rank=self.spec.rank,
            replica=self.spec.replica,
            state=state,
            since=self._life.since,
            port=self.running.port if self.lives else self.spec.port,
            restarts=self._life.restarts,
            generation=self._life.generation or 0,
            cause=cause,
            due=engine_life.due_of(self._life),
            port_taken=self._life.port_taken,
            slots=self._slots(),
            load=self._load() if serves else None,
            spec=None if self.known else self.running,
        )

    def _slots(self) -> int | None:
        # Of an engine that doesn't say, only the profile does.
        if self._engine is None or adapter(self.running.profile.engine).slots_path is None:
            return None
        slots: int = self._engine.asked.slots
        return slots

    def _load(self) -> Load | None:
        engine = self._engine
        asked = replace(self.running, metrics=self.spec.metrics)
        names = adapter(asked.profile.engine).metrics(asked)
        if engine is None or names is None or engine.hung or engine.asked.no_metrics:
            return None
        page = engine.metrics()
        return None if page is None else probe.parse_load(page, names)

    def _health(self, engine: FakeEngine) -> Health:
        if adapter(self.running.profile.engine).health_path(self.running) is None:
            return Health.READY
        if engine.failed:
            return Health.BROKEN
        if not engine.listens:
            return Health.REFUSED
        if engine.hung:
            return Health.SILENT
        return Health.LOADING if engine.loading else Health.READY

    # -- its life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after it until it was stopped and is gone."""
        while not self.over:
            self._poke.clear()
            self._turn()
            if not self.over:
                await first(self._poke.wait(), self._pause())

    def _pause(self) -> float:
        engine = self._engine
        calm = (
            self._life.phase is Phase.READY
            and engine is not None
            and self._health(engine) is Health.READY
            # What is done to an engine of this process pokes; its own doing has to be looked for.
            and engine.asked.nnodes == 1
            and engine.asked.hang_health_after is None
        )
        return _NO_LOOK_S if calm else engine_life.next_look(self._life, now=self._tools.now())

    def _turn(self) -> None:
        seen = self._look()
        profile = self.running.profile
        patience = Limits(
            load_timeout_s=profile.load_timeout_s, drain_timeout_s=profile.drain_timeout_s
        )
        if self.spec.rank > 0:
            # Rank 0 has the requests in flight, and has ended.
            patience = replace(patience, drain_timeout_s=0)
        if self._hurry:
            patience = replace(patience, drain_timeout_s=0, grace_s=0)
        self._life, actions = supervise.step(
            self._life,
            seen,
            wanted=self._wanted,
            limits=patience,
            now=self._tools.now(),
            luck=self._tools.luck(),
            start=engine_life.group_start(self.spec),
        )
        for action in actions:
            self._perform(action)
        if self._status is not None and self._life.phase is not Phase.STARTING:
            self._let_go()
        self._tell()

    def _look(self) -> Seen:
        engine = self._engine
        if engine is None:
            return Seen(running=False)
        if self._status is not None:
            exit_ = Exit(status=self._status, log=self.log.tail())
            return Seen(running=False, ended=causes.why(exit_, self.running))
        answers = adapter(self.running.profile.engine).health_path(self.running) is not None
        return Seen(
            running=True,
            health=self._health(engine),
            log_bytes=self.log.size(),
            in_flight=engine.running + engine.waiting if answers and not engine.hung else None,
        )

    def _perform(self, action: engine_life.Action) -> None:
        match action:
            case Start():
                self._start()
            case Terminate():
                if self._engine is not None:
                    self._engine.sigterm()
            case Kill():
                if self._engine is not None:
                    self._engine.leave(_KILLED)
            case Forget():
                self._let_go()
                self.log.remove()
            case _:
                assert_never(action)

    def _start(self) -> None:
        tools, spec = self._tools, self.spec
        self._let_go()
        mark = Mark(
            agent=tools.agent, fleet=tools.fleet(), placement=spec.placement, rank=spec.rank
        )
        try:
            line = command_line(spec, tools, mark)
            if (port := causes.taken_port(spec)) is not None:
                self._failed_to_start(causes.port_taken(spec.host, port))
                return
            os.close(self.log.open())
        except RoostError as cause:
            self._failed_to_start(Ended(cause=cause.message))
            return
        except OSError as cause:
            self._failed_to_start(Ended(cause=causes.not_started("the engine", cause)))
            return
        asked = knobs([*line.argv[len(PROGRAM) :], *(knobs_of_a_loop() if self.loops else ())])
        self.running = spec
        self._life = supervise.started(self._life, now=tools.now())
        self._status = None
        engine = self._engine = FakeEngine(
            asked=asked,
            ranks=Ranks.of(asked),
            say=self._say,
            leave=lambda status: self._left(engine, status),
            key=key_of(asked, line.env),
        )
        self._work = asyncio.create_task(live(engine))
        self._work.add_done_callback(lambda work: self._failed(engine, work))

    def _failed_to_start(self, ended: Ended) -> None:
        tools = self._tools
        self._life = supervise.failed(self._life, ended, now=tools.now(), luck=tools.luck())

    def _left(self, engine: FakeEngine, status: int) -> None:
        """It has ended, if it is the present one: an earlier one has long been replaced."""
        if engine is not self._engine or self._status is not None:
            return
        self._status = status
        engine.close()
        self._poke.set()

    def _failed(self, engine: FakeEngine, work: asyncio.Task[None]) -> None:
        """A bug in the fake engine ends it, as it would end a process."""
        if not work.cancelled() and (cause := work.exception()) is not None:
            engine.say(f"{type(cause).__name__}: {cause}")
            engine.leave(1)

    def _let_go(self) -> None:
        if self._engine is not None:
            self._engine.close()
        if self._work is not None:
            self._work.cancel()
        self._engine = self._work = self._status = None

    def _say(self, line: str) -> None:
        append(self.log.path, line)
        self._lines += 1
        if self._lines % _LINES_PER_TRIM == 0:
            self.log.trim()

    def _tell(self) -> None:
        observed = replace(self.observed(), load=None)
        if observed != self._told:
            self._told = observed
            self._tools.changed()


def knobs_of_a_loop() -> tuple[str, ...]:
    """What makes an engine end soon after its start."""
    return ("--exit-after", "0.5", "--exit-code", "1", "--stderr", LOOPS)


def append(path: Path, line: str) -> None:
    """One line more; no descriptor stays open, of which thousands of engines have not enough."""
    with path.open("ab") as file:
        file.write(f"{line}\n".encode(errors="replace"))
