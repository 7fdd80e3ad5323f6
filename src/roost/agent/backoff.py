"""How long to wait before asking again."""

from collections.abc import Callable


class Backoff:
    """Growing delays with jitter: a fleet that lost its server must not come back in one second."""

    def __init__(
        self, luck: Callable[[], float], *, first: float = 0.5, longest: float = 30
    ) -> None:
        self._luck = luck
        self._first = first
        self._longest = longest
        self._failures = 0

    @property
    def failing(self) -> bool:
        """The last attempt didn't work."""
        return self._failures > 0

    def worked(self) -> None:
        """From the shortest again."""
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure: between half and all of the doubled delay."""
        whole = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return whole * (0.5 + self._luck() / 2)
