"""What is known of one engine, what may be done to it, and what is said of it. Pure.

How one follows from another is `roost.reconcile.supervise`'s.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from roost.domain.replica import ReplicaState, ShardSpec

SILENT_AFTER_S: Final = 15.0
"""A ready engine that gives no good answer for so long is reported as not ready."""
SILENT_ANSWERS: Final = 2
"""And at least so many answers in a row must have been bad."""
GRACE_S: Final = 10.0
"""Between SIGTERM and SIGKILL."""
CRASH_LOOP_FROM: Final = 3
"""Failures in a row."""


class Health(StrEnum):
    """What an engine's answer, or the lack of one, means."""

    REFUSED = "refused"
    """Nobody listens."""
    LOADING = "loading"
    READY = "ready"
    SILENT = "silent"
    """Connected, and no answer in time."""
    BROKEN = "broken"
    """An answer that a well engine doesn't give."""


class Phase(StrEnum):
    """Where one engine is in its life."""

    WAITING = "waiting"
    """No process is wanted yet: the first start, or the one after a failure, is due at `due`."""
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """To be stopped; what is in flight finishes."""
    REPLACING = "replacing"
    """Of a group: SIGTERM was sent, SIGKILL follows; a later start of the group is wanted."""
    ENDING = "ending"
    """SIGTERM was sent, SIGKILL follows."""
    CLEARING = "clearing"
    """No process of it lives; its port and its cards are not yet seen free."""
    GONE = "gone"
    """Stopped on purpose, and nothing of it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The profile's patience."""

    load_timeout_s: float = 1800
    drain_timeout_s: float = 60
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """Which start of all shards of a replica on several nodes is wanted."""

    generation: int
    hold: bool = False
    """None of it yet."""


def group_start(spec: ShardSpec) -> GroupStart | None:
    """Of a shard of several; `None`: it is alone, and restarts in place."""
    if spec.profile.nodes == 1:
        return None
    return GroupStart(generation=spec.generation, hold=spec.hold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the engine's first process ended, as a sentence."""

    cause: str
    port_taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What an engine of which no process lives seems to hold; what can't be told isn't held."""

    port: int | None = None
    """Its port, which can't be bound."""
    on_cards: tuple[int, ...] = ()
    """Process ids that its cards' driver still lists and that exist no more."""

    def __str__(self) -> str:
        """`port 21003 is in use, process 4711 is listed on its GPUs`."""
        said = [] if self.port is None else [f"port {self.port} is in use"]
        if self.on_cards:
            which = ", ".join(str(pid) for pid in self.on_cards)
            said.append(f"the GPU driver still lists process {which}")
        return ", ".join(said)


NOTHING_LEFT: Final = Left()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the shell saw just now; `None` is "not looked at", never "none"."""

    running: bool
    """The engine's first process lives."""
    others: tuple[int, ...] = ()
    """Other processes of the engine that live, or that its cards' driver lists and that exist;
    looked for when the first one is gone.
    """
    left: Left = NOTHING_LEFT
    """Looked for when no process of it lives."""
    ended: Ended | None = None
    health: Health | None = None
    log_bytes: int | None = None
    in_flight: float | None = None
    """Requests running and waiting, by a scrape made after the previous step."""
    scraped: bool = False
    """Its metrics page was answered after the previous step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """All that is remembered of one engine between two steps."""

    phase: Phase = Phase.WAITING
    since: float = 0
    """When the present phase began."""
    due: float | None = 0
    """WAITING: not to be started before; None: the server says when."""
    generation: int | None = None
    """The start of its group that it belongs to; None: it is alone, and restarts in place."""
    starts: int = 0
    restarts: int = 0
    failures: int = 0
    """In a row, for the delay."""
    cause: str | None = None
    port_taken: bool = False
    cause_before: str | None = None
    """Why it was restarted last, while `cause` says that its port is taken."""
    ready_since: float | None = None
    """Of the present process."""
    ill_since: float | None = None
    """READY: the first of the bad answers in a row."""
    bad_answers: int = 0
    """READY: so many in a row, at least half a second apart."""
    bad_at: float | None = None
    looked_at: float | None = None
    """When the last step was."""
    holds: bool = False
    """A process was started, and its port and cards have not been seen free since."""
    clearing_since: float | None = None
    progress_at: float = 0
    """When the log last grew, the metrics page was last answered, or the process was started."""
    heard_at: float = 0
    """When it last answered that it is loading."""
    log_bytes: int = 0
    idle_since: float | None = None
    signalled_at: float | None = None
    killing_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start the engine; no process of an earlier run lives."""

    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """SIGTERM to the engine's first process."""

    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL to every process of the engine."""

    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The engine was stopped and is gone: nothing of it is kept."""

    because: str


Action = Start | Terminate | Kill | Forget

_STATES: Final = {
    Phase.WAITING: ReplicaState.PLACED,
    Phase.STARTING: ReplicaState.STARTING,
    Phase.LOADING: ReplicaState.LOADING,
    Phase.READY: ReplicaState.READY,
    Phase.DRAINING: ReplicaState.DRAINING,
    Phase.REPLACING: ReplicaState.DRAINING,
    Phase.ENDING: ReplicaState.DRAINING,
    Phase.CLEARING: ReplicaState.DRAINING,
    Phase.GONE: ReplicaState.STOPPED,
}


def first_life(start: GroupStart | None, *, now: float) -> Life:
    """Of an engine that was never started."""
    if start is None:
        return Life(since=now, due=now)
    return Life(since=now, due=None if start.hold else now, generation=start.generation)


def due_of(life: Life) -> float | None:
    """When the next start is due; None: none is, or a process of the last run is in its way."""
    waits = life.phase is Phase.WAITING and life.cause is not None
    return life.due if waits and life.killing_since is None else None


def cause_of(life: Life) -> str | None:
    """Why it failed or was restarted last; while it fails again and again, how often."""
    looping = life.failures >= CRASH_LOOP_FROM and life.phase in {
        Phase.WAITING,
        Phase.STARTING,
        Phase.LOADING,
    }
    if life.cause is None or not looping or life.port_taken or life.killing_since is not None:
        return life.cause
    return f"crash-looping, {life.failures} failures in a row, {life.cause}"


def is_silent(life: Life) -> bool:
    """Ready once, and without a good answer for so long that it gets no traffic."""
    return _ill_for(life) >= SILENT_AFTER_S and life.bad_answers >= SILENT_ANSWERS


def _ill_for(life: Life) -> float:
    """By the looks alone: a clock that went on while nobody looked says nothing."""
    if life.ill_since is None or life.looked_at is None:
        return 0.0
    return life.looked_at - life.ill_since


def state_of(life: Life) -> ReplicaState:
    """The word for it that the server and people know."""
    if life.phase is Phase.WAITING and life.cause is not None and not life.port_taken:
        return ReplicaState.FAILED  # a taken port is no failure: another one is on its way
    if is_silent(life):
        return ReplicaState.STARTING
    return _STATES[life.phase]


def next_look(life: Life, *, now: float) -> float:
    """Seconds until looking again is worth it: often while something may change, calmly after."""
    match life.phase:
        case Phase.WAITING if life.signalled_at is None and life.due is None:
            return 60.0 if life.clearing_since is None else 0.2
        case Phase.WAITING if (
            life.signalled_at is None
            and life.due is not None
            and (life.clearing_since is None or now < life.due)
        ):
            return min(max(life.due - now, 0.02), 60.0)
        case Phase.STARTING | Phase.LOADING:
            return min(max(0.2, 0.02 * (now - life.since)), 2.0)
        case Phase.READY:
            return 5.0 if life.ill_since is None else 1.0
        case Phase.GONE:
            return 3600.0
        case _:
            return 0.2
