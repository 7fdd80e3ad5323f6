"""Runs a coroutine that awaits futures alone, without a task."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Course:
    """
    A coroutine under way.

    It costs less than a task, and cancelling it takes effect at once. What it awaits must be a
    future or a task: `asyncio.timeout` and the like want a task around them.
    """

    __slots__ = ("_awaited", "_begun", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._awaited: asyncio.Future[Any] | None = None
        self._begun = False

    def begin(self) -> None:
        """Run it to where it awaits something, unless it was cancelled before."""
        if not self._begun:
            self._begun = True
            self._step(None)

    def _step(self, done: "asyncio.Future[Any] | None") -> None:
        if done is not self._awaited:
            return  # it was cancelled when this was on its way already
        self._awaited = None
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            return
        # As a task does it: the future was told that somebody awaits it.
        awaited._asyncio_future_blocking = False  # noqa: SLF001
        self._awaited = awaited
        awaited.add_done_callback(self._step)

    def cancel(self) -> None:
        """End it where it awaits, now; it may clean up, and await nothing more."""
        awaited, self._awaited = self._awaited, None
        if not self._begun:
            self._begun = True
            self._coroutine.close()
        if awaited is None:
            return
        awaited.remove_done_callback(self._step)
        try:
            self._coroutine.throw(asyncio.CancelledError())
        except (StopIteration, asyncio.CancelledError):
            return
        raise RuntimeError("what is cancelled awaits nothing more")
