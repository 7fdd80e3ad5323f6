"""A server and a node for each test that asks for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.node import Node
from agent.wire_server import WireServer

Story = Callable[[WireServer, Node], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[[Story], None]:
    """Run a test's story with a listening server and a node that has not been started."""

    @asynccontextmanager
    async def both() -> AsyncIterator[tuple[WireServer, Node]]:
        async with WireServer().listening() as server:
            node = Node(directory=tmp_path / "node", server=server.url)
            try:
                yield server, node
            except BaseException:
                if node.log.exists():
                    print(node.log.read_text()[-8000:])  # noqa: T201 - pytest shows it
                raise
            finally:
                await node.clean()

    def run(story: Story) -> None:
        async def whole() -> None:
            async with both() as (server, node):
                await story(server, node)

        asyncio.run(whole())

    return run
