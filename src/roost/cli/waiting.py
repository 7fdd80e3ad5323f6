"""Waiting until the replicas of some models are ready, and saying why they are not."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from roost.cli.client import Client, part
from roost.cli.explain import decisions_as_text
from roost.cli.output import plural
from roost.errors import Unreachable

_EVERY_S: Final = 0.5
_SETTLE_S: Final = 1.0
"""So long a changed model must stay ready: its old replicas are ready until the server has looked,
and are replaced one after the other."""
_HOPELESS_S: Final = 10.0
"""How long nothing may move while a replica fits nowhere, before that is the answer."""
_RESTARTS: Final = 3
_FAILED_S: Final = 20.0
"""So many failed starts while waiting, or so long failed without a break, and it keeps failing."""
_OVER: Final = frozenset({"draining", "stopped", "lost"})
_MOVING: Final = frozenset({"placed", "starting", "loading", "draining"})

Json = Mapping[str, Any]


class Status(Enum):
    """How the waiting ended."""

    READY = 0
    FAILED = 1
    UNPLACEABLE = 4
    TIMED_OUT = 6

    @property
    def exit_code(self) -> int:
        """The exit status of `ctl`."""
        return int(self.value)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of the replicas, and lines that say why."""

    status: Status
    replicas: Sequence[Json]
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The models and replicas as the server tells them at one moment."""

    wanted: Mapping[str, int]
    rows: Sequence[Json]
    everything_rests: bool
    """No replica of any model is on its way anywhere."""

    @property
    def waiting(self) -> list[Json]:
        """Replicas that are not ready and are to be, or are ready by what was wanted before."""
        return [
            row
            for row in self.rows
            if row["state"] not in _OVER and (row["state"] != "ready" or row.get("stale"))
        ]

    @property
    def ready(self) -> int:
        """How many of the wanted replicas serve; one that is being replaced is there twice."""
        return sum(min(len(self._ready(model)), wanted) for model, wanted in self.wanted.items())

    def done(self, *, changed: frozenset[str]) -> bool:
        """All are ready, and of a changed model nothing old is left."""
        return (
            not self.waiting
            and self.ready == sum(self.wanted.values())
            and not any(row["state"] == "draining" for row in self.rows if row["model"] in changed)
        )

    def _ready(self, model: str) -> set[str]:
        return {
            row["replica"]
            for row in self.rows
            if row["model"] == model and row["state"] == "ready" and not row.get("stale")
        }


def await_ready(
    client: Client,
    changes: Sequence[Json],
    *,
    timeout: float,
    tell: Callable[[str], None],
) -> Verdict:
    """Wait for every replica of the models that were applied."""
    started = time.monotonic()
    models = [str(change["model"]) for change in changes]
    changed = frozenset(str(c["model"]) for c in changes if c["change"] == "changed")
    watch = _Watch(tell)
    done_since: float | None = None
    while True:
        late = time.monotonic() - started
        try:
            look = _look(client, models)
        except Unreachable:
            # A server that is restarted meanwhile goes on where it was.
            if late >= timeout:
                raise
        else:
            watch.see(look)
            if not look.done(changed=changed):
                done_since = None
            elif done_since is None:
                done_since = late
            if done_since is not None and (not changed or late - done_since >= _SETTLE_S):
                said = f"{plural(look.ready, 'replica')} ready after {done_since:.1f} s"
                return Verdict(status=Status.READY, replicas=look.rows, lines=[said])
            if late >= timeout or watch.keeps_failing or watch.hopeless(client):
                return _why_not(client, look, watch, late)
        time.sleep(max(0.01, min(_EVERY_S, timeout - late)))


class _Watch:
    """What was seen from look to look."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: dict[str, str] = {}
        self._first_restarts: dict[str, int] = {}
        self._failed_since: dict[str, float] = {}
        self._stale = False
        self._models: list[str] = []
        self._quiet_since: float | None = None
        self._asked_at = 0.0
        self.failing: dict[str, Json] = {}
        self.keeps_failing = False

    def see(self, look: _Look) -> None:
        """Note what changed since the last look, and tell it."""
        now = time.monotonic()
        self.failing = {}
        for row in look.rows:
            name, state = str(row["replica"]), str(row["state"])
            restarts = int(row.get("restarts") or 0)
            again = restarts - self._first_restarts.setdefault(name, restarts)
            if state == "failed" or (state not in _OVER | {"ready"} and again > 0):
                self.failing[name] = row
                self.keeps_failing |= again >= _RESTARTS
            if state != "failed":
                self._failed_since.pop(name, None)
            elif now - self._failed_since.setdefault(name, now) >= _FAILED_S:
                self.keeps_failing = True
            where = dict.fromkeys(str(shard["node"]) for shard in row.get("shards") or ())
            line = f"{name} is {state}" + (f" on {', '.join(where)}" if where else "")
            if state == "failed" and row.get("cause"):
                line += f": {row['cause']}"
            # While one is replaced beside its successor, both have its name.
            one = str(row.get("placement") or name)
            if self._told.get(one) != line:
                self._told[one] = line
                self._tell(line)
        stuck = all(row["state"] == "pending" or row.get("stale") for row in look.waiting)
        if not (look.waiting and stuck and look.everything_rests):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        self._stale = any(row.get("stale") for row in look.waiting)
        self._models = sorted({str(row["model"]) for row in look.waiting})

    def hopeless(self, client: Client) -> bool:
        """Nothing moves any more, and every replica that waits fits nowhere."""
        now = time.monotonic()
        if self._quiet_since is None or now - self._quiet_since < _HOPELESS_S:
            return False
        if now - self._asked_at < _HOPELESS_S:
            return False
        self._asked_at = now
        return self._stale or bool(_unplaceable(client, self._models))


def _look(client: Client, models: Sequence[str]) -> _Look:
    wanted = {
        str(row["model"]): int(row["replicas"])
        for row in client.get("/api/v1/models")["models"]
        if row["model"] in models
    }
    rows = client.get("/api/v1/replicas")["replicas"]
    return _Look(
        wanted=wanted,
        rows=[row for row in rows if row.get("model") in wanted],
        everything_rests=not any(row["state"] in _MOVING for row in rows),
    )


def _unplaceable(client: Client, models: Sequence[str]) -> list[Json]:
    """The decisions that found no place, of these models."""
    found: list[Json] = []
    for model in models:
        answer = client.get(f"/api/v1/explain/{part(model)}")
        found += [d for d in answer.get("decisions") or () if d["outcome"] == "unplaceable"]
    return found


def _why_not(client: Client, look: _Look, watch: _Watch, late: float) -> Verdict:
    waiting = look.waiting
    nowhere = _unplaceable(
        client, sorted({str(row["model"]) for row in waiting if row["state"] == "pending"})
    )
    if watch.failing:
        status = Status.FAILED
    elif nowhere or (look.everything_rests and any(row.get("stale") for row in waiting)):
        status = Status.UNPLACEABLE
    else:
        status = Status.TIMED_OUT
    return Verdict(
        status=status,
        replicas=look.rows,
        lines=[*_lines(look, watch, nowhere), f"error: {_sum(look, status, late)}"],
    )


def _lines(look: _Look, watch: _Watch, nowhere: Sequence[Json]) -> Iterator[str]:
    if nowhere:
        yield decisions_as_text({"decisions": list(nowhere)}, all_nodes=False)
    for name, row in watch.failing.items():
        yield f"{name} failed: {row.get('cause') or 'no cause is known'}"
        yield f"hint: roost ctl logs {name}"
    for row in look.waiting:
        if row["state"] == "ready":
            yield f"{row['replica']} still serves by the old profile: the new one has no room yet"
        elif row["state"] != "pending" and row["replica"] not in watch.failing:
            cause = f": {row['cause']}" if row.get("cause") else ""
            yield f"{row['replica']} is still {row['state']}{cause}"
            yield f"hint: roost ctl logs {row['replica']}"


def _sum(look: _Look, status: Status, late: float) -> str:
    wanted = sum(look.wanted.values())
    of = f"{look.ready} of {plural(wanted, 'replica')} ready after {late:.1f} s"
    reason = {
        Status.FAILED: "a replica keeps failing",
        Status.UNPLACEABLE: "a replica fits nowhere",
        Status.TIMED_OUT: "the time is up",
    }[status]
    return f"{reason}: {of}; the catalog stays applied"
