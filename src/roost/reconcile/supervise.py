"""What to do next with one engine: start it, wait, believe it, give up on it, stop it.

The shell (`roost.agent.supervise`) looks, calls `step`, performs the actions, and looks again.
Nothing here reads a clock, a file or a process: what was seen, the time and the dice come in as
arguments.

    WAITING ─start─▶ STARTING ─▶ LOADING ─▶ READY ─stop─▶ DRAINING ─▶ ENDING ─▶ CLEARING ─▶ GONE
       ▲                 │          │         │                          ▲
       └──── backoff ────┴──────────┴─────────┘ (not ready: straight to) ┘

An engine of a group (`roost.reconcile.groups`) is started once in each start of the group. After a
failure it waits for the next one, and where a later start is wanted while it is up, it is ended
(REPLACING) and waits for that.
"""

from dataclasses import replace
from typing import Final

from roost.reconcile.ending import (
    CLEAR_WITHIN_S,
    begin_stop,
    clears,
    drain,
    end,
    kill,
    see_off,
)
from roost.reconcile.engine_life import (
    NOTHING_LEFT,
    Action,
    Ended,
    GroupStart,
    Health,
    Life,
    Limits,
    Phase,
    Seen,
    Start,
    Terminate,
)

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 300.0
PORT_DELAY_S: Final = 5.0
"""Before a taken port is tried again, if the server assigns no other: no failure of the engine's.
"""
STABLE_AFTER_S: Final = 600.0
"""Ready for so long, an engine's next failure starts from the shortest delay again."""
HUNG_AFTER_S: Final = 60.0
"""A ready engine that gives no good answer for so long is ended and started again."""
ANSWERS_APART_S: Final = 0.5
"""Answers closer together are one."""
HUNG_ANSWERS: Final = 5
"""And at least so many answers in a row must have been bad: time alone is no evidence."""
BUSY_AFTER_S: Final = 600.0
"""An engine that is silent to health checks and shows life otherwise is believed busy for so long.
"""
ABSENT_AFTER_S: Final = 30.0
"""Between two looks: longer, and it was the agent that was stopped, not the engine."""
BELIEVED_LOADING: Final = 3.0
"""How many load timeouts the bare answer "loading" is worth: it is the engine's word, not its
progress.
"""


def step(
    life: Life,
    seen: Seen,
    *,
    wanted: bool,
    limits: Limits,
    now: float,
    luck: float,
    start: GroupStart | None = None,
) -> tuple[Life, tuple[Action, ...]]:
    """The next life, and what to do; `luck` in [0, 1) spreads restarts."""
    life, seen = _after_absence(life, seen, now=now)
    if not wanted and life.phase not in _STOPPING:
        return begin_stop(life, seen, now=now)
    match life.phase:
        case Phase.WAITING:
            if start is not None:
                return _wait_for_group(life, seen, start, now=now)
            return _wait(life, seen, now=now)
        case Phase.STARTING | Phase.LOADING | Phase.READY:
            if start is not None and seen.running and _is_later(life, start):
                return _replace(life, start, now=now)
            return _watch(life, seen, limits=limits, now=now, luck=luck)
        case _:
            return _finish(life, seen, limits=limits, now=now)


def _finish(
    life: Life, seen: Seen, *, limits: Limits, now: float
) -> tuple[Life, tuple[Action, ...]]:
    """It is on its way out, for good or for the next start of its group."""
    if life.phase is Phase.DRAINING:
        return drain(life, seen, limits=limits, now=now)
    if life.phase is Phase.REPLACING:
        return _replaced(life, seen, now=now, grace_s=limits.grace_s)
    if life.phase is Phase.GONE:
        return life, ()
    return end(life, seen, now=now, grace_s=limits.grace_s)


_STOPPING: Final = frozenset({Phase.DRAINING, Phase.ENDING, Phase.CLEARING, Phase.GONE})


def _after_absence(life: Life, seen: Seen, *, now: float) -> tuple[Life, Seen]:
    """The agent's own gap (stopped by a signal, a machine that stood still) counts against nobody.

    What was asked before the gap and was not answered in time is no answer either.
    """
    absent = 0.0 if life.looked_at is None else now - life.looked_at
    life = replace(life, looked_at=now)
    if life.phase not in _UP or absent < ABSENT_AFTER_S:
        return life, seen
    life = replace(
        life,
        progress_at=min(now, life.progress_at + absent),
        heard_at=min(now, life.heard_at + absent),
        ill_since=None,
        bad_answers=0,
    )
    if seen.health in {Health.SILENT, Health.BROKEN, Health.REFUSED}:
        seen = replace(seen, health=None)
    return life, seen


_UP: Final = frozenset({Phase.STARTING, Phase.LOADING, Phase.READY})


def started(life: Life, *, now: float) -> Life:
    """After `Start` was performed."""
    again = life.starts > 0 and not life.port_taken
    return replace(
        life,
        phase=Phase.STARTING,
        since=now,
        starts=life.starts + 1,
        restarts=life.restarts + (1 if again else 0),
        cause=life.cause_before if life.port_taken else life.cause,
        cause_before=None,
        port_taken=False,
        ready_since=None,
        ill_since=None,
        bad_answers=0,
        looked_at=now,
        holds=True,
        clearing_since=None,
        progress_at=now,
        heard_at=now,
        log_bytes=0,
        idle_since=None,
        signalled_at=None,
        killing_since=None,
    )


def failed(life: Life, ended: Ended, *, now: float, luck: float) -> Life:
    """Ended, given up on, or never started: when to try again, and why it was."""
    stable = life.ready_since is not None and now - life.ready_since >= STABLE_AFTER_S
    failures, pause = life.failures, PORT_DELAY_S
    before = life.cause_before if life.port_taken else life.cause
    alone = life.generation is None  # else the server counts, and says when
    if alone and not ended.port_taken:
        failures = 1 if stable else failures + 1
        pause = delay(failures, luck=luck)
    return replace(
        life,
        phase=Phase.WAITING,
        since=now,
        due=now + pause if alone else None,
        failures=failures,
        cause=ended.cause,
        cause_before=before if ended.port_taken else None,
        port_taken=ended.port_taken,
        ready_since=None,
        ill_since=None,
        bad_answers=0,
        # Whoever has the port, it isn't this engine.
        holds=life.holds and not ended.port_taken,
        clearing_since=None,
        signalled_at=None,
        killing_since=None,
    )


def hurried(life: Life, *, now: float) -> Life:
    """Something that matters to the next start has changed (another port): try at once.

    One of a group waits for its group all the same.
    """
    alone = life.generation is None
    return replace(life, due=now) if alone and life.phase is Phase.WAITING else life


def delay(failures: int, *, luck: float) -> float:
    """Seconds to wait after so many failures in a row, less up to a quarter by luck."""
    whole = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 30))
    return whole * (1 - luck / 4)


def next_is_due(life: Life, *, start: GroupStart | None, now: float) -> bool:
    """What an engine that waits seems to hold is in the way of its next start, which is due."""
    if life.phase is not Phase.WAITING:
        return False
    if start is not None and _is_later(life, start):
        return True
    return life.due is not None and life.due <= now


def _wait(life: Life, seen: Seen, *, now: float) -> tuple[Life, tuple[Action, ...]]:
    if seen.running or seen.others:
        return kill(life, seen, now=now, because=_STILL_LIVES)
    due = now if life.due is None else life.due
    # The port is asked for again by the start itself, which has another one assigned.
    life, clear = clears(life, held=bool(seen.left.on_cards), from_=due, now=now)
    if not clear or now < due:
        return life, ()
    because = "wanted" if life.cause is None else f"again after: {life.cause}"
    if seen.left.on_cards and life.holds:
        because = f"{because}; {seen.left} {CLEAR_WITHIN_S:g} s after its last process ended"
    return life, (Start(because=because),)


_REPLACED: Final = "ended, for a later start of its group"
_STILL_LIVES: Final = "a process of the last run still lives"


def _wait_for_group(
    life: Life, seen: Seen, start: GroupStart, *, now: float
) -> tuple[Life, tuple[Action, ...]]:
    if seen.running or seen.others:
        return kill(life, seen, now=now, because=_STILL_LIVES)
    later = _is_later(life, start)
    # The others start only when this one's port is free, so it is waited for.
    life, clear = clears(life, held=later and seen.left != NOTHING_LEFT, from_=now, now=now)
    if not clear:
        return life, ()
    if later:
        life = _entered(life, start, now=now)
    elif life.cause is not None:
        life = replace(life, due=None)
    if start.hold or start.generation != life.generation or life.cause is not None:
        return life, ()
    return life, (Start(because=f"start {start.generation} of its group"),)


def _is_later(life: Life, start: GroupStart) -> bool:
    return life.generation is None or start.generation > life.generation


def _entered(life: Life, start: GroupStart, *, now: float) -> Life:
    """It waits for the wanted start, and nothing of an earlier one is in its way."""
    return replace(
        life,
        since=now,
        generation=start.generation,
        due=None if start.hold else now,
        cause=None,
        cause_before=None,
        port_taken=False,
        holds=False,
    )


def _replace(life: Life, start: GroupStart, *, now: float) -> tuple[Life, tuple[Action, ...]]:
    """Requests in flight are lost with the group that served them: nothing is waited for."""
    life = replace(life, phase=Phase.REPLACING, since=now, ill_since=None, bad_answers=0)
    life = replace(life, signalled_at=now, killing_since=None, ready_since=None)
    return life, (Terminate(because=f"start {start.generation} of its group is wanted"),)


def _replaced(
    life: Life, seen: Seen, *, now: float, grace_s: float
) -> tuple[Life, tuple[Action, ...]]:
    if not seen.running and not seen.others:
        # A server that forgot the later start must not have this one begun a second time.
        # It is due to see what it held free, and then to wait for the later one.
        life = replace(life, phase=Phase.WAITING, since=now, due=now, cause=_REPLACED)
        return replace(life, signalled_at=None, killing_since=None, clearing_since=None), ()
    return see_off(life, seen, now=now, grace_s=grace_s)


def _watch(
    life: Life, seen: Seen, *, limits: Limits, now: float, luck: float
) -> tuple[Life, tuple[Action, ...]]:
    if not seen.running:
        ended = seen.ended or Ended(cause="ended; its exit status is not known")
        after = failed(life, ended, now=now, luck=luck)
        if seen.others:
            return kill(after, seen, now=now, because="its first process ended, others live")
        return after, ()
    if seen.log_bytes is not None and seen.log_bytes != life.log_bytes:
        life = replace(life, log_bytes=seen.log_bytes, progress_at=now)
    if seen.scraped:
        life = replace(life, progress_at=now)
    if seen.health is Health.READY:
        life = replace(life, ill_since=None, bad_answers=0)
        if life.phase is Phase.READY:
            return life, ()
        return replace(life, phase=Phase.READY, since=now, ready_since=now), ()
    if life.phase is Phase.READY:
        return _watch_ready(life, seen, now=now, luck=luck)
    if seen.health is Health.LOADING:
        if life.phase is Phase.STARTING:
            life = replace(life, phase=Phase.LOADING, since=now)
        life = replace(life, heard_at=now)
    return _watch_loading(life, seen, limits=limits, now=now, luck=luck)


def _watch_ready(
    life: Life, seen: Seen, *, now: float, luck: float
) -> tuple[Life, tuple[Action, ...]]:
    if seen.health is Health.LOADING:
        # It says so itself, so it isn't hung: out of routing until it is ready again.
        life = replace(life, ill_since=None, bad_answers=0)
        return replace(life, phase=Phase.LOADING, since=now, progress_at=now, heard_at=now), ()
    if seen.health is None:
        return life, ()
    ill_since = now if life.ill_since is None else life.ill_since
    life = replace(life, ill_since=ill_since)
    if life.bad_at is None or not life.bad_answers or now - life.bad_at >= ANSWERS_APART_S:
        life = replace(life, bad_answers=life.bad_answers + 1, bad_at=now)
    # Silence under load is not an end: the log and the metrics page tell of life. What answers
    # wrongly, or has nobody listening, says itself that it is none.
    alive_at = max(ill_since, life.progress_at) if seen.health is Health.SILENT else ill_since
    hung = now - alive_at >= HUNG_AFTER_S or now - ill_since >= BUSY_AFTER_S
    if not hung or life.bad_answers < HUNG_ANSWERS:
        return life, ()
    what = (
        f"gave no good answer to {life.bad_answers} health checks in {now - ill_since:.0f} s, "
        f"last: {seen.health}"
    )
    return _give_up(life, seen, what, now=now, luck=luck)


def _watch_loading(
    life: Life, seen: Seen, *, limits: Limits, now: float, luck: float
) -> tuple[Life, tuple[Action, ...]]:
    limit = limits.load_timeout_s
    silent = now - max(life.progress_at, life.heard_at)
    stuck = now - life.progress_at
    if silent < limit and stuck < limit * BELIEVED_LOADING:
        return life, ()
    waited = limit if silent >= limit else limit * BELIEVED_LOADING
    what = f"not ready within {waited:g} s of silence, last state: {life.phase}"
    return _give_up(life, seen, what, now=now, luck=luck)


def _give_up(
    life: Life, seen: Seen, cause: str, *, now: float, luck: float
) -> tuple[Life, tuple[Action, ...]]:
    after = failed(life, Ended(cause=cause), now=now, luck=luck)
    return kill(after, seen, now=now, because=cause)
