"""Which processes NVIDIA's driver lists on some cards right now: asked when an engine has ended."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from roost.agent.facts import nvml
from roost.agent.tasks import in_thread

WITHIN_S: Final = 3.0


class Holders:
    """Asks in a thread, one question at a time; what a driver that hangs holds is not known."""

    def __init__(self, library: Callable[[], Any] | None = None) -> None:
        self._session = nvml.Session(library or nvml.load)
        self._under_way: asyncio.Future[tuple[int, ...] | None] | None = None
        self._turn = asyncio.Lock()

    async def of(self, uuids: Sequence[str]) -> tuple[int, ...] | None:
        """Process ids; None: the driver can't say, or doesn't in time."""
        async with self._turn:
            if self._under_way is not None:
                # Of an earlier question, whose answer came late or never.
                await asyncio.wait({self._under_way}, timeout=WITHIN_S)
                if not self._under_way.done():
                    return None
            wanted = tuple(uuids)
            self._under_way = in_thread(lambda: self._ask(wanted))
            await asyncio.wait({self._under_way}, timeout=WITHIN_S)
            if not self._under_way.done():
                return None
            answer, self._under_way = self._under_way.result(), None
            return answer

    def _ask(self, uuids: Sequence[str]) -> tuple[int, ...] | None:
        try:
            return self._session.on_cards(uuids)
        except nvml.Failed:
            return None
        finally:
            # Kept open by the facts where they are read from it; else the driver may go.
            self._session.close()
