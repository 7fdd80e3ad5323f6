"""Revisions of things that others wait for: a number a topic, which only grows."""

import asyncio
from collections.abc import Iterable


class Watch:
    """Long-polls wait here; a bump wakes those of its topic, closing wakes all.

    `first`: what every topic begins at. Where it is random, another life's numbers are not taken
    for this one's.
    """

    def __init__(self, *, first: int = 1) -> None:
        self._first = first
        self._revisions: dict[str, int] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._closed = False

    def revision(self, topic: str) -> int:
        """Now."""
        return self._revisions.get(topic, self._first)

    def has_been(self, topic: str, revision: int) -> bool:
        """Whether that is or was the topic's."""
        return self._first <= revision <= self.revision(topic)

    def bump(self, topics: Iterable[str]) -> None:
        """Something about these changed."""
        for topic in topics:
            self._revisions[topic] = self.revision(topic) + 1
            self._wake(topic)

    async def change(self, topic: str, seen: int, *, timeout_s: float) -> bool:
        """Wait until the topic's revision isn't `seen`; whether it is, after the time is up."""
        if self.revision(topic) == seen and not self._closed and timeout_s > 0:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(topic, set()).add(waiter)
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError:
                pass
            finally:
                waiting = self._waiting.get(topic)
                if waiting is not None:
                    waiting.discard(waiter)
                    if not waiting:
                        del self._waiting[topic]
        return self.revision(topic) != seen

    def close(self) -> None:
        """Nobody waits any longer: the server ends."""
        self._closed = True
        for topic in list(self._waiting):
            self._wake(topic)

    def _wake(self, topic: str) -> None:
        for waiter in self._waiting.get(topic, ()):
            if not waiter.done():
                waiter.set_result(None)
