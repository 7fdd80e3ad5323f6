"""Answers of one turn of the loop, sent one right after the other."""

import asyncio
from collections.abc import Callable


class Writes:
    """
    What is to be sent when the turn's readings are done.

    A write between two readings wakes its receiver, which finds one answer and sleeps again: under
    load that costs a tenth of all CPU. Written together, many are found by one waking.
    """

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None]) -> None:
        """Call it at the turn's end, in the order in which they came."""
        if not self._waiting:
            self._loop.call_soon(self._run)
        self._waiting.append(write)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            write()
