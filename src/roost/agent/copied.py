"""Is this machine a copy of the one that is the node? The server says so, again and again."""

import asyncio
from collections.abc import Callable
from typing import Final

REFUSED_FOR_S: Final = 60.0
"""A server refuses a second machine for as long as it heard the first within two intervals, 30 s at
most. A machine that was merely started again is let in after that; one that is refused for longer
is another one."""
REFUSED_INTERVALS: Final = 12
"""The same where a server wants reports more often than every 5 s."""


class Copied:
    """What the server has said of it; certain once it has said so for long enough."""

    def __init__(self, *, now: Callable[[], float], interval_s: Callable[[], float]) -> None:
        self._now = now
        self._interval_s = interval_s
        self._since: float | None = None
        self._certain = asyncio.Event()
        self._accepted = asyncio.Event()

    def refused(self) -> None:
        """The server calls this machine a copy."""
        self._accepted.clear()
        if self._since is None:
            self._since = self._now()
        if self._now() - self._since >= min(REFUSED_FOR_S, REFUSED_INTERVALS * self._interval_s()):
            self._certain.set()

    def accepted(self) -> None:
        """The server takes this machine for the node."""
        self._since = None
        self._certain.clear()
        self._accepted.set()

    @property
    def is_certain(self) -> bool:
        """It has been said for so long that this machine is no other than a copy."""
        return self._certain.is_set()

    async def certain(self) -> None:
        """Until it is certain that this machine is a copy."""
        await self._certain.wait()

    async def over(self) -> None:
        """Until the server takes this machine for the node after all."""
        await self._accepted.wait()
