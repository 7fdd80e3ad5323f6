"""A machine that the server calls a copy of the node stops what the copied directory orders."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from agent.conftest import Story
from agent.node import Node, fake_llama_server, shard
from agent.wire_server import WireServer
from roost.agent.copied import REFUSED_FOR_S, Copied
from roost.domain.replica import ReplicaState

Tell = Callable[[Story], None]


def test_the_engines_of_a_copy_end_and_come_back_if_it_becomes_the_node(
    tell: Tell, tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        program = fake_llama_server(tmp_path)
        kept = node.directory / "agent" / "desired.json"
        await node.start("--join", "token-1", "--llama-server", str(program))
        await server.want(shard())
        await server.state("p1", ReplicaState.READY)
        assert node.engines()
        server.mode = "copy"
        server.drop_connections()
        await server.until(lambda: not node.engines() and not kept.exists())
        assert "remove " in node.log.read_text()
        # Also the next agent on this directory starts nothing.
        await node.end()
        await node.start("--llama-server", str(program))
        before = server.refusals
        await server.until(lambda: server.refusals > before + 2)
        assert node.engines() == []
        server.mode = "ok"
        await server.state("p1", ReplicaState.READY)
        assert await node.end() == 0

    tell(story)


def test_a_machine_that_was_started_again_is_refused_for_a_while_and_keeps_its_engines() -> None:
    async def story() -> None:
        clock = [0.0]
        copied = Copied(now=lambda: clock[0], interval_s=lambda: 5)

        def refused_at(*moments: float) -> bool:
            for clock[0] in moments:
                copied.refused()
            return copied.is_certain

        assert not refused_at(0, 10, REFUSED_FOR_S - 1)
        copied.accepted()
        assert not refused_at(REFUSED_FOR_S + 1, 2 * REFUSED_FOR_S)
        assert refused_at(2 * REFUSED_FOR_S + 1)
        copied.accepted()
        assert not copied.is_certain
        await copied.over()

    asyncio.run(story())
