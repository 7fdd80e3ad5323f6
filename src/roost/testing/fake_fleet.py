"""Many nodes in one process, over the real agent protocol: what a fleet file says, and engines that
answer.

Each node has an address of its own in 127.0.0.0/8 (Linux), where its engines listen.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import httpx2

from roost.agent.supervise import probe
from roost.domain.fleet import Fleet
from roost.errors import NotFound, RoostError
from roost.testing.fake_in_process import InProcess
from roost.testing.fake_node import FakeNode, World
from roost.testing.fake_processes import AsProcesses, Places
from roost.testing.faults import Fault, Kind

EngineKind = Literal["in-process", "processes"]
_JOIN_AT_ONCE: Final = 32


@dataclass(kw_only=True)
class FakeFleet:
    """The nodes of a fleet file."""

    fleet: Fleet
    url: str
    """The server's."""
    directory: Path
    """Each node keeps its identity below it."""
    token_file: Path
    """A join token that is good for every node."""
    engines: EngineKind = "in-process"
    most_processes: int = 32
    """Engines beyond so many do not start, if they are processes."""
    first_address: int = 0
    """The first node's, as `address_of` counts: for several fleets on one machine."""
    _nodes: dict[str, FakeNode] = field(default_factory=dict)

    async def run(self) -> None:
        """Be all of them, until cancelled; raises `Refused` if one may not join."""
        places = Places(self.most_processes)
        async with probe.client() as http:
            world = World(
                url=self.url,
                tls=httpx2.create_ssl_context(),
                http=http,
                joining=asyncio.Semaphore(_JOIN_AT_ONCE),
                engines=lambda tools: (
                    InProcess(tools) if self.engines == "in-process" else AsProcesses(tools, places)
                ),
            )
            try:
                async with asyncio.TaskGroup() as group:
                    for number, node in enumerate(self.fleet.nodes, self.first_address):
                        own = self.directory / node.name
                        own.mkdir(parents=True, exist_ok=True, mode=0o700)
                        fake = self._nodes[node.name] = FakeNode(
                            node,
                            world,
                            directory=own,
                            token_file=self.token_file,
                            address=address_of(number),
                        )
                        group.create_task(fake.run())
                        # Thousands take a while to make: those that are there speak meanwhile.
                        await asyncio.sleep(0)
            except BaseExceptionGroup as several:
                raise first_reason(several) from None

    async def fail(self, fault: Fault) -> Fault:
        """Let something go wrong; the fault, whole. Raises `NotFound`, `Unusable`."""
        return await self.node(fault.node).fail(fault)

    async def heal(
        self,
        node: str,
        kind: Kind | None = None,
        *,
        gpu: int | None = None,
        replica: str | None = None,
    ) -> Sequence[Fault]:
        """End all faults of a node that these words fit; raises `NotFound`."""
        return await self.node(node).heal(kind, gpu, replica)

    def faults(self) -> tuple[Fault, ...]:
        """All that stand."""
        return tuple(fault for node in self._nodes.values() for fault in node.faults)

    def node(self, name: str) -> FakeNode:
        """One of them; raises `NotFound`."""
        if name not in self._nodes:
            names = list(self._nodes)
            some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise NotFound(f"this fleet has no node {name}: it has {some}")
        return self._nodes[name]


def address_of(number: int) -> str:
    """A node's own, by its place in the file."""
    return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"


def first_reason(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first thing that Roost said on purpose; else the first bug."""
    found, rest = several.split(RoostError)
    one: BaseException = found if found is not None else rest or several
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one
