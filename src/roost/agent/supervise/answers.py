"""What an engine said when it was asked last: how it is, how busy, how many requests at once."""

from collections.abc import Callable
from dataclasses import replace

import httpx2

from roost.agent.supervise import probe
from roost.domain.replica import Load, ShardSpec
from roost.engines import adapter
from roost.reconcile.engine_life import Health


class Answers:
    """Of one shard's engine; `None` is: not asked, or it didn't say."""

    def __init__(self, http: httpx2.AsyncClient, now: Callable[[], float]) -> None:
        self.health: Health | None = None
        self.slots: int | None = None
        self._load: Load | None = None
        self._load_at = 0.0
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
        """Requests that it runs or that wait in it."""
        if self._load is None or self._load.running is None:
            return None
        return self._load.running + (self._load.waiting or 0)

    async def ask_health(self, spec: ShardSpec) -> None:
        """Whether it is ready."""
        self.health = await probe.health(self._http, adapter(spec.profile.engine), spec)

    async def ask_load(self, spec: ShardSpec) -> None:
        """How busy it is."""
        self._load = await probe.load(self._http, adapter(spec.profile.engine), spec)
        self._load_at = self._now()

    async def ask_slots(self, spec: ShardSpec) -> None:
        """How many requests it takes at once."""
        self.slots = await probe.slots(self._http, adapter(spec.profile.engine), spec)

    def forget_load(self) -> None:
        """The process that it was of is gone."""
        self._load = None
