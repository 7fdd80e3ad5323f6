"""Time as an argument: what services ask instead of the machine's clocks."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for people and other machines, one that never jumps."""

    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; only differences mean something."""
        ...


class SystemClock:
    """The machine's."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()
