"""Facts of this machine as last read: again and again, though a filesystem may hang."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from roost.agent import facts
from roost.agent.facts import Asked, ports
from roost.agent.facts.gpus import Reader as CardReader
from roost.agent.facts.host import Reader as HostReader
from roost.agent.facts.processes import Ours
from roost.agent.facts.remembered import Memory
from roost.agent.supervise.engines import Engines
from roost.agent.tasks import in_thread
from roost.domain.node import Facts

WITHIN_S: Final = 5.0


class Reading:
    """Reads when told to; what it read stays until something newer is there."""

    def __init__(
        self,
        asked: Asked,
        *,
        port_range: tuple[int, int],
        memory: Path,
        nvml: Callable[[], Any] | None,
    ) -> None:
        self.facts = Facts()
        self.problems: tuple[str, ...] = ()
        self.ports_taken: tuple[int, ...] = ()
        """By others than this node's engines."""
        self._asked = asked
        self._port_range = port_range
        self._machine = HostReader(asked.root, asked.model_directories)
        self._cards = CardReader(asked.gpus, library=nvml, memory=Memory(memory))
        self._under_way: asyncio.Future[tuple[Facts, tuple[str, ...]]] | None = None

    async def read(self, agent: str, engines: Engines) -> bool:
        """In a thread and with a limit. Whether engines or cards are others than before."""
        if self._under_way is None:
            pids, given = engines.on_cards()
            ours = Ours(agent=agent, pids=pids, gpus=given)
            self._under_way = in_thread(
                lambda: facts.read(self._asked, self._cards, ours, self._machine)
            )
        done, _ = await asyncio.wait({self._under_way}, timeout=WITHIN_S)
        if not done:
            self.problems = (
                f"reading facts takes more than {WITHIN_S:g} s: a filesystem may hang",
            )
            return False
        before = self.facts
        self.facts, self.problems = self._under_way.result()
        self._under_way = None
        self.ports_taken = ports.taken(self._asked.root, self._port_range, engines.ports())
        return (self.facts.engines, self.facts.gpus) != (before.engines, before.gpus)

    def close(self) -> None:
        """Let go of what is kept open; a reading that still hangs keeps it."""
        if self._under_way is None:
            self._machine.close()
