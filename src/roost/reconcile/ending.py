"""How an engine ends: drained, terminated, killed, and what it held seen free. Pure."""

from dataclasses import replace
from typing import Final

from roost.reconcile.engine_life import (
    GRACE_S,
    NOTHING_LEFT,
    Action,
    Forget,
    Kill,
    Life,
    Limits,
    Phase,
    Seen,
    Terminate,
)

SETTLE_S: Final = 1.0
"""An engine to be stopped must be seen idle for so long: a gateway may still be about to hear of
the stop.
"""
RESEND_S: Final = 1.0
STUBBORN_AFTER_S: Final = 10.0
CLEAR_WITHIN_S: Final = 10.0
"""For a port and cards to be seen free once no process of the engine lives; then it is said and
gone on without.
"""


def begin_stop(life: Life, seen: Seen, *, now: float) -> tuple[Life, tuple[Action, ...]]:
    """It is not wanted any more: drained if it is ready, else ended."""
    if not seen.running and not seen.others:
        return _clear(life, seen, now=now)
    if life.phase is Phase.READY and seen.running:
        life = replace(life, phase=Phase.DRAINING, since=now, idle_since=None)
        return replace(life, ill_since=None, bad_answers=0), ()
    return _terminate(life, seen, now=now, because="not wanted any more, and not ready")


def drain(life: Life, seen: Seen, *, limits: Limits, now: float) -> tuple[Life, tuple[Action, ...]]:
    """What is in flight finishes, for so long as its profile gives it."""
    if not seen.running:
        return end(replace(life, phase=Phase.ENDING, since=now), seen, now=now)
    drained = now - life.since
    if drained >= limits.drain_timeout_s:
        because = f"still busy after {limits.drain_timeout_s:g} s of draining"
        if seen.in_flight is not None:
            because = f"{seen.in_flight:g} requests in flight after {drained:.0f} s of draining"
        return _terminate(life, seen, now=now, because=because)
    if seen.in_flight is None or seen.in_flight > 0:
        return replace(life, idle_since=None), ()
    idle_since = now if life.idle_since is None else life.idle_since
    if now - idle_since < SETTLE_S:
        return replace(life, idle_since=idle_since), ()
    return _terminate(life, seen, now=now, because="not wanted any more, and nothing in flight")


def end(
    life: Life, seen: Seen, *, now: float, grace_s: float = GRACE_S
) -> tuple[Life, tuple[Action, ...]]:
    """SIGTERM was sent, or no process lives: until nothing of it is left."""
    if not seen.running and not seen.others:
        return _clear(life, seen, now=now)
    if life.phase is Phase.CLEARING:
        # One that was missed, or that the cards' driver knows of: what holds a card is not gone.
        life = replace(life, phase=Phase.ENDING, since=now)
    return see_off(life, seen, now=now, grace_s=grace_s)


def see_off(
    life: Life, seen: Seen, *, now: float, grace_s: float
) -> tuple[Life, tuple[Action, ...]]:
    """After SIGTERM: the time to end by itself, then SIGKILL."""
    if not seen.running:
        return kill(life, seen, now=now, because="its first process ended, others live")
    if now - life.since < grace_s:
        return life, ()
    return kill(life, seen, now=now, because=f"still there {grace_s:.0f} s after SIGTERM")


def _terminate(
    life: Life, seen: Seen, *, now: float, because: str
) -> tuple[Life, tuple[Action, ...]]:
    life = replace(life, phase=Phase.ENDING, since=now, ill_since=None, bad_answers=0)
    life = replace(life, signalled_at=None, killing_since=None)
    if not seen.running:
        return end(life, seen, now=now)
    return replace(life, signalled_at=now), (Terminate(because=because),)


def kill(life: Life, seen: Seen, *, now: float, because: str) -> tuple[Life, tuple[Action, ...]]:
    """SIGKILL to what lives of it, again and again; what outlives that is said."""
    since = now if life.killing_since is None else life.killing_since
    life = replace(life, killing_since=since)
    if now - since >= STUBBORN_AFTER_S:
        pids = "process " + ", ".join(str(pid) for pid in seen.others)
        pids = pids if seen.others else "its first process"
        why = f"cannot be ended by SIGKILL, tried for over {STUBBORN_AFTER_S:.0f} s: {pids}"
        life = replace(life, cause=why)
    recently = life.signalled_at is not None and now - life.signalled_at < RESEND_S
    # SIGTERM counts as a signal too: the first SIGKILL after it must not wait.
    if recently and since != now:
        return life, ()
    return replace(life, signalled_at=now), (Kill(because=because),)


def _clear(life: Life, seen: Seen, *, now: float) -> tuple[Life, tuple[Action, ...]]:
    if not life.holds or seen.left == NOTHING_LEFT:
        if life.phase is Phase.CLEARING:
            life = replace(life, cause=None)
        return _gone(life, "stopped, and no process of it lives", now=now)
    if life.phase is not Phase.CLEARING:
        life = replace(
            life, phase=Phase.CLEARING, since=now, cause=f"no process lives; {seen.left}"
        )
        life = replace(life, signalled_at=None, killing_since=None)
    if now - life.since < CLEAR_WITHIN_S:
        return life, ()
    what = f"stopped; {seen.left} {now - life.since:.0f} s after its last process ended"
    return _gone(replace(life, cause=what), what, now=now)


def _gone(life: Life, because: str, *, now: float) -> tuple[Life, tuple[Action, ...]]:
    life = replace(life, phase=Phase.GONE, since=now, signalled_at=None, killing_since=None)
    return replace(life, holds=False, clearing_since=None), (Forget(because=because),)


def clears(life: Life, *, held: bool, from_: float, now: float) -> tuple[Life, bool]:
    """No process lives; whether what it held is free, or was given long enough to be."""
    life = replace(life, signalled_at=None, killing_since=None)
    if not held or not life.holds:
        return replace(life, clearing_since=None), True
    since = now if life.clearing_since is None else life.clearing_since
    return replace(life, clearing_since=since), now >= max(from_, since + CLEAR_WITHIN_S)
