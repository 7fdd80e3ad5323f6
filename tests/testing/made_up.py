"""A made-up fleet and the real server it speaks to, in one process, and what `ctl` would show."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import uvicorn

from roost.api.app import App
from roost.domain.fabric import FabricAttachment, FabricName, HcaName
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.placement import plan
from roost.reconcile.nodes import LeaseRules
from roost.services.server import Server, open_server
from roost.testing.fake_fleet import FakeFleet
from roost.testing.faults import Fault, Kind

T = TypeVar("T")
Row = dict[str, Any]

LIMIT_S: Final = 100
GB: Final = 10**9
_MOST_NODES: Final = 3
RULES: Final = LeaseRules(missed=2, lost_after_s=12)
"""Agents report every 5 s, which is the least."""

CATALOG: Final = """
models:
- name: small
  replicas: {replicas}
  profiles:
  - {{name: gpu, engine: vllm, source: org/model, gpu_class: h100, gpus_per_node: {gpus}}}
"""


def catalog(replicas: int = 1, gpus: int = 1) -> str:
    return CATALOG.format(replicas=replicas, gpus=gpus)


def node(name: str, *, gpus: int = 2) -> Node:
    """Well, with so many cards of one kind, all on one fabric."""
    cards = (
        Gpu(
            index=index,
            gpu_class=GpuClass("h100"),
            uuid=GpuUuid(f"GPU-{name}-{index}"),
            memory_bytes=80 * GB,
            healthy=True,
            foreign_processes=0,
        )
        for index in range(gpus)
    )
    fabric = FabricAttachment(name=FabricName("ib0"), hcas=(HcaName("mlx5_0"),))
    disk = Filesystem(filesystem="/dev/a", mounts=("/",), free_bytes=900 * GB)
    facts = Facts(
        memory_bytes=512 * GB,
        engines=frozenset({"vllm", "sglang", "llama.cpp"}),
        gpus=tuple(cards),
        fabrics=(fabric,),
        storage=(disk,),
    )
    return Node(name=NodeName(name), facts=facts)


@dataclass(kw_only=True)
class MadeUp:
    """All of it, running."""

    server: Server
    fleet: FakeFleet

    # -- what is done to it ----------------------------------------------------------------------

    async def apply(self, text: str) -> None:
        await self.server.operations.apply(text, filename="catalog.yaml", who="test")

    async def fail(
        self, node: str, kind: Kind, *, gpu: int | None = None, replica: str | None = None
    ) -> None:
        await self.fleet.fail(Fault(node=node, kind=kind, gpu=gpu, replica=replica))

    # -- what ctl says ---------------------------------------------------------------------------

    def node(self, name: str) -> Row:
        """`ctl node NAME`."""
        return self.server.views.node(NodeName(name))

    def card(self, name: str, index: int) -> Row:
        found: Row = next(gpu for gpu in self.node(name)["gpus"] if gpu["index"] == index)
        return found

    def copies(self, name: str = "small-0") -> list[Row]:
        """`ctl replicas`: of one replica all that there is."""
        return [row for row in self.server.views.replicas() if row["replica"] == name]

    def copy(self, state: str, name: str = "small-0", **more: object) -> Row | None:
        """One in that state, and with these other words."""
        wanted = {"state": state, **more}
        return next((row for row in self.copies(name) if wanted.items() <= row.items()), None)

    async def answers(self, row: Row) -> bool:
        """Somebody listens where its first shard's engine does."""
        shard = row["shards"][0]
        async with httpx2.AsyncClient(timeout=30) as http:
            try:
                return (await http.get(f"http://{shard['host']}:{shard['port']}/health")).is_success
            except httpx2.TransportError:
                return False

    # -- waiting ---------------------------------------------------------------------------------

    async def until(self, found: Callable[[], T | None]) -> T:
        """What `found` finds, once it does; at no moment before is a card held twice, or do two
        starts of one replica run side by side.
        """
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    self.check_cards()
                    self.check_starts()
                    if (result := found()) is not None and result is not False:
                        return result
                    await asyncio.sleep(0.02)
        except TimeoutError:
            rows = self.server.views.replicas()
            raise AssertionError(f"not within {LIMIT_S} s: {rows}") from None

    async def moved(self, first: Row) -> Row:
        """Another copy of a replica, once it is ready."""
        return await self.until(
            lambda: next(
                (
                    row
                    for row in self.copies(first["replica"])
                    if row["state"] == "ready" and row["placement"] != first["placement"]
                ),
                None,
            )
        )

    async def ready(self, name: str = "small-0", **more: object) -> Row:
        return await self.until(lambda: self.copy("ready", name, **more))

    def check_cards(self) -> None:
        """By the server's books, and by what runs on the nodes."""
        held = [
            uuid
            for replica in self.server.ledger.replicas.values()
            for shard in replica.shards
            for uuid in shard.gpu_uuids
        ]
        assert len(held) == len(set(held)), held
        for one in self.fleet.fleet.nodes:
            if self.server.inventory.live(one.name).heard:
                used = [uuid for spec in self.fleet.node(one.name).live for uuid in spec.gpu_uuids]
                assert len(used) == len(set(used)), used

    def check_starts(self) -> None:
        """Of a replica on several nodes."""
        running: dict[str, set[int]] = {}
        for one in self.fleet.fleet.nodes:
            if self.server.inventory.live(one.name).heard:
                for spec in self.fleet.node(one.name).live:
                    running.setdefault(spec.placement, set()).add(spec.generation)
        assert all(len(generations) == 1 for generations in running.values()), running


@contextlib.asynccontextmanager
async def made_up(
    directory: Path,
    *nodes: Node,
    rules: LeaseRules = RULES,
) -> AsyncIterator[MadeUp]:
    """A server on `directory`, and these nodes once all have joined and reported."""
    assert len(nodes) <= _MOST_NODES
    server = await open_server(directory / "server", plan=plan, rules=rules)
    server.start()
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        http = uvicorn.Server(
            uvicorn.Config(
                App(server), lifespan="off", log_config=None, timeout_graceful_shutdown=3
            )
        )
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        _, token = await server.joining.create_token(ttl_s=600, uses=len(nodes), who="test")
        (directory / "token").write_text(token)
        fleet = FakeFleet(
            fleet=Fleet(nodes=nodes),
            url=f"http://127.0.0.1:{listening.getsockname()[1]}",
            directory=directory / "nodes",
            token_file=directory / "token",
            # Tests that run beside this one have fleets of their own.
            first_address=os.getpid() * _MOST_NODES,
        )
        running = asyncio.create_task(fleet.run())
        try:
            made = MadeUp(server=server, fleet=fleet)
            await made.until(
                lambda: (
                    running.done()
                    or [row["status"] for row in server.views.nodes()["nodes"] if row["ready"]]
                    == ["ready"] * len(nodes)
                )
            )
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            server.end_waits()
            http.should_exit = True
            await serving
            await server.stop()
