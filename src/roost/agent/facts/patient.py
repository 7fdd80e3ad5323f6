"""What does a driver say that may hang for ever? Asked in a thread of its own, one at a time."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """`said` is the last answer, None if it is too old or there was none yet."""

    said: T | None
    silent_s: float | None
    """How long the question that is out has been waiting; None: this is its answer."""


class Patient(Generic[T]):
    """Waits `within_s` for an answer; then the last one holds, until the silence is `forget_s`.

    While a question is out no other is asked: a driver that hangs gets one thread, not one more
    for each look. The thread dies with the process.
    """

    def __init__(
        self,
        ask: Callable[[], T],
        *,
        within_s: float,
        forget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._within = within_s
        self._forget = forget_s
        self._clock = clock
        self._answers: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()
        self._asked_at: float | None = None
        self._last: T | None = None

    def look(self) -> Answer[T]:
        """The answer now; raises what asking raised."""
        if self._asked_at is None:
            self._asked_at = self._clock()
            threading.Thread(target=self._run, name="driver", daemon=True).start()
        try:
            found = self._answers.get(timeout=self._within)
        except queue.Empty:
            silent = self._clock() - self._asked_at
            return Answer(said=self._last if silent < self._forget else None, silent_s=silent)
        self._asked_at = None
        if isinstance(found, BaseException):
            self._last = None
            raise found
        self._last = found
        return Answer(said=found, silent_s=None)

    def _run(self) -> None:
        try:
            self._answers.put(self._ask())
        except BaseException as cause:  # noqa: BLE001 - told to whoever looks, in its own thread
            self._answers.put(cause)
