"""When the shards of a replica on several nodes start again: all together, or none. Pure.

One rank's end is everybody's: the others hang on it, or end when they next need it. So the server
counts starts (`generation`): a failure asks for the next one and holds it back until every shard of
the one before is gone, its ports and cards free, and the pause is over. Agents never start a shard
of a group a second time by themselves.

    running g ── a rank fails ──▶ held g+1 ── all clear, pause over ──▶ running g+1
"""

from collections.abc import Collection

from roost.domain.node import NodeName
from roost.domain.replica import ReplicaState
from roost.reconcile.actions import Begin, Restart
from roost.reconcile.engine_life import CRASH_LOOP_FROM
from roost.reconcile.replicas import Replica, Shard, Wish
from roost.reconcile.supervise import LONGEST_DELAY_S, STABLE_AFTER_S, delay


def regroup(
    replica: Replica, *, back: Collection[NodeName], now: float, luck: float
) -> Restart | Begin | None:
    """What a group needs next; `None`: nothing, or nothing yet.

    `back` has the nodes that have reported to this server and aren't lost.
    """
    if not replica.is_group or replica.wish is not Wish.RUN:
        return None
    newest = max(shard.generation for shard in replica.shards)
    if newest > replica.generation:
        return _catch_up(replica, newest, back=back, now=now, luck=luck)
    if any(_has_failed(replica, shard) for shard in replica.shards):
        return _restart(replica, replica.generation + 1, _cause(replica), now=now, luck=luck)
    if replica.hold:
        return _begin(replica, now=now)
    return None


def restart_due(replica: Replica, *, now: float) -> float | None:
    """Seconds until a held group may begin; `None`: it isn't held, or its pause is over."""
    if not replica.hold or replica.restart_at is None or replica.wish is not Wish.RUN:
        return None
    pause = replica.restart_at - now
    # A clock that was set back must not make it wait for ever.
    return pause if 0 < pause <= LONGEST_DELAY_S else None


def _catch_up(
    replica: Replica, newest: int, *, back: Collection[NodeName], now: float, luck: float
) -> Restart | Begin | None:
    """Agents have had a later start from this fleet than the server's database knows of."""
    if not set(replica.nodes) <= set(back):
        return None
    why = f"its agents are at start {newest} of it, and the database knows of {replica.generation}"
    if all(shard.generation == newest for shard in replica.shards):
        return Begin(placement=replica.placement, generation=newest, because=why)
    return _restart(replica, newest + 1, why, now=now, luck=luck)


def _begin(replica: Replica, *, now: float) -> Begin | None:
    if any(_has_begun(replica, shard) for shard in replica.shards):
        return Begin(
            placement=replica.placement,
            generation=replica.generation,
            because="it has begun already, and the database does not know of it",
        )
    if restart_due(replica, now=now) is not None:
        return None
    if not all(_is_clear(replica, shard) for shard in replica.shards):
        return None
    return Begin(
        placement=replica.placement,
        generation=replica.generation,
        because=f"again after: {replica.cause}" if replica.cause else "its ports are free",
    )


def _restart(replica: Replica, generation: int, cause: str, *, now: float, luck: float) -> Restart:
    stable = replica.ready_since is not None and now - replica.ready_since >= STABLE_AFTER_S
    failures = 1 if stable else replica.failures + 1
    if failures >= CRASH_LOOP_FROM:
        cause = f"crash-looping, {failures} failures in a row, {cause}"
    return Restart(
        placement=replica.placement,
        generation=generation,
        failures=failures,
        at=now + delay(failures, luck=luck),
        because=cause,
    )


def _has_failed(replica: Replica, shard: Shard) -> bool:
    return shard.generation == replica.generation and shard.state is ReplicaState.FAILED


def _has_begun(replica: Replica, shard: Shard) -> bool:
    return shard.generation == replica.generation and shard.state is not ReplicaState.PLACED


def _is_clear(replica: Replica, shard: Shard) -> bool:
    """It has let go of the start before, and waits for this one."""
    return (
        shard.generation == replica.generation
        and shard.state is ReplicaState.PLACED
        and shard.pid is None
    )


def _cause(replica: Replica) -> str:
    if replica.cause is not None and not replica.hold:
        return replica.cause
    failed = next(shard for shard in replica.shards if _has_failed(replica, shard))
    return f"rank {failed.rank} on {failed.node} failed"
