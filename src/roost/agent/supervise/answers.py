"""What an engine said when it was asked last: how it is, how busy, how many requests at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import httpx2

from roost.agent.supervise import probe
from roost.domain.replica import Load, ShardSpec
from roost.engines import adapter
from roost.reconcile.engine_life import Health

FIRST_SERIES_S: Final = 120.0
"""An engine may show none of its series before it has served something; after so long it is said.
"""


class Answers:
    """Of one shard's engine; `None` is: not asked, or it didn't say."""

    def __init__(self, http: httpx2.AsyncClient, now: Callable[[], float]) -> None:
        self.health: Health | None = None
        self.slots: int | None = None
        self._load: Load | None = None
        self._load_at = 0.0
        self._waiting_counts = False
        """The number that waits is looked for."""
        self._missing: tuple[str, ...] = ()
        self._missing_since = 0.0
        self._missing_some = False
        self._http = http
        self._now = now

    @property
    def load(self) -> Load | None:
        """With its age."""
        if self._load is None:
            return None
        return replace(self._load, age_s=round(max(0.0, self._now() - self._load_at), 3))

    @property
    def in_flight(self) -> float | None:
        """Requests that it runs or that wait in it; of what isn't looked for none wait."""
        if self._load is None or self._load.running is None:
            return None
        if not self._waiting_counts:
            return self._load.running
        return None if self._load.waiting is None else self._load.running + self._load.waiting

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Series that its metrics page should have and hasn't."""
        early = not self._missing_some and self._now() - self._missing_since < FIRST_SERIES_S
        return () if early else self._missing

    async def ask_health(self, spec: ShardSpec) -> None:
        """Whether it is ready."""
        self.health = await probe.health(self._http, adapter(spec.profile.engine), spec)

    async def ask_load(self, spec: ShardSpec) -> None:
        """How busy it is."""
        engine = adapter(spec.profile.engine)
        names = engine.metrics(spec)
        scrape = await probe.scrape(self._http, engine, spec)
        self._waiting_counts = names is not None and bool(names.waiting)
        self._load_at = self._now()
        self._load = None if scrape is None else scrape.load
        if scrape is None:
            return
        if scrape.missing != self._missing:
            self._missing, self._missing_since = scrape.missing, self._load_at
        self._missing_some = scrape.some

    async def ask_slots(self, spec: ShardSpec) -> None:
        """How many requests it takes at once."""
        self.slots = await probe.slots(self._http, adapter(spec.profile.engine), spec)

    def forget_load(self) -> None:
        """The process that it was of is gone."""
        self._load = None
        self._missing = ()
