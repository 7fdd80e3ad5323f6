"""A made-up node and a server that speaks to it by hand."""

import asyncio
from dataclasses import replace
from pathlib import Path

from agent.node import shard
from agent.wire_server import WireServer
from roost.domain.fleet import Fleet
from roost.testing.fake_fleet import FakeFleet
from roost.testing.fleet_shapes import make_fleet


def test_what_is_in_no_list_goes_on_and_is_reported_as_it_was_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with WireServer().listening() as server:
            token = tmp_path / "token"
            token.write_text("token-1")
            fleet = Fleet(nodes=make_fleet("cpu", 1, 0).nodes)
            nodes = asyncio.ensure_future(
                FakeFleet(fleet=fleet, url=server.url, directory=tmp_path, token_file=token).run()
            )
            try:
                await server.until(lambda: server.reports or None)
                address = server.reports[-1].address
                assert address is not None
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
            finally:
                nodes.cancel()
                await asyncio.gather(nodes, return_exceptions=True)

    asyncio.run(story())
