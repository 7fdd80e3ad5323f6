"""What a worker has counted and holds now, in a form that can be sent and added up."""

from collections.abc import Iterable

import msgspec

from roost.gateway.accounts import TTFT_BOUNDS
from roost.gateway.context import Context


class Times(msgspec.Struct):
    """A histogram: counts by bucket, and the sum of the seconds."""

    counts: list[int]
    total: float


class ModelNow(msgspec.Struct):
    """What a model's requests and replicas are at."""

    waiting: int = 0
    in_flight: int = 0
    ejected: set[str] = msgspec.field(default_factory=set)
    """Replicas: several workers may have left one alone, and it is one all the same."""


class Counts(msgspec.Struct):
    """Of one worker, or of several together."""

    requests: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)
    """By model and code."""
    ttft: dict[str, Times] = msgspec.field(default_factory=dict)
    models: dict[str, ModelNow] = msgspec.field(default_factory=dict)
    connections: int = 0
    log_dropped: int = 0

    def add(self, other: "Counts") -> None:
        """Count what another one has, too."""
        for key, count in other.requests.items():
            self.requests[key] = self.requests.get(key, 0) + count
        for name, times in other.ttft.items():
            mine = self.ttft.setdefault(name, Times([0] * (len(TTFT_BOUNDS) + 1), 0.0))
            mine.counts = [a + b for a, b in zip(mine.counts, times.counts, strict=True)]
            mine.total += times.total
        for name, model in other.models.items():
            now = self.models.setdefault(name, ModelNow())
            now.waiting += model.waiting
            now.in_flight += model.in_flight
            now.ejected |= model.ejected
        self.connections += other.connections
        self.log_dropped += other.log_dropped

    def ended(self) -> "Counts":
        """What is left of a worker that is gone: what it counted, and nothing that it held."""
        return Counts(requests=self.requests, ttft=self.ttft, log_dropped=self.log_dropped)


def count(context: Context, *, connections: int) -> Counts:
    """What one worker has now."""
    accounts = context.accounts
    return Counts(
        requests=dict(accounts.requests),
        ttft={name: Times(list(h.counts), h.total) for name, h in accounts.ttft.items()},
        models={
            model.name: ModelNow(
                waiting=len(model.queue),
                in_flight=sum(e.in_flight for e in model.endpoints),
                ejected={e.route.replica for e in model.endpoints if e.health.until is not None},
            )
            for model in context.table.models.values()
        },
        connections=connections,
        log_dropped=accounts.log.dropped,
    )


def total(counts: Iterable[Counts]) -> Counts:
    """All of them together."""
    together = Counts()
    for one in counts:
        together.add(one)
    return together
