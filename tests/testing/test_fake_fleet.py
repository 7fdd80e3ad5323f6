"""A made-up node and a server that speaks to it by hand."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from agent.node import shard
from agent.wire_server import WireServer
from roost.domain.fleet import Fleet
from roost.testing.fake_fleet import FakeFleet
from roost.testing.fleet_shapes import make_fleet


@contextlib.asynccontextmanager
async def one_node(
    directory: Path, server: WireServer, *, most_processes: int | None = None
) -> AsyncIterator[str]:
    """A fleet of one node, once it has reported: its address."""
    token = directory / "token"
    token.write_text("token-1")
    fleet = FakeFleet(
        fleet=Fleet(nodes=make_fleet("cpu", 1, 0).nodes),
        url=server.url,
        directory=directory,
        token_file=token,
        engines="in-process" if most_processes is None else "processes",
        most_processes=most_processes or 0,
        first_address=os.getpid(),
    )
    nodes = asyncio.ensure_future(fleet.run())
    try:
        await server.until(lambda: server.reports or None)
        address = server.reports[-1].address
        assert address is not None
        yield address
    finally:
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)


def test_what_is_in_no_list_goes_on_and_is_reported_as_it_was_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with WireServer().listening() as server, one_node(tmp_path, server) as address:
            spec = replace(shard(), host=address, port=20500)
            await server.want(spec)
            assert (await server.state("p1", "ready")).spec is None
            await server.want()
            orphan = await server.until(
                lambda: seen if (seen := server.shard("p1")) and seen.spec else None
            )
            assert orphan.state == "ready"
            assert orphan.spec == spec
            await server.want(stop=("p1",))
            await server.state("p1", "stopped")
            await server.want()
            await server.until(lambda: server.shard("p1") is None)

    asyncio.run(story())


def test_an_engine_process_too_many_waits_until_another_has_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            WireServer().listening() as server,
            one_node(tmp_path, server, most_processes=1) as address,
        ):
            first = replace(shard("p1"), host=address, port=20500)
            second = replace(shard("p2"), host=address, port=20501)
            await server.want(first)
            await server.state("p1", "ready")
            await server.want(first, second)
            refused = await server.state("p2", "failed")
            assert refused.pid is None
            assert refused.cause is not None
            assert "runs 1 engine processes, which is its limit" in refused.cause
            await server.want(second, stop=("p1",))
            ready = await server.state("p2", "ready")
            assert ready.pid is not None

    asyncio.run(story())
