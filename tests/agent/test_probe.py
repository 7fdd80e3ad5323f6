"""Engines that answer the agent's questions in bad faith, or without an end."""

import asyncio
import contextlib

import pytest

from agent.node import shard
from roost.agent.supervise import probe
from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import Load
from roost.engines import adapter
from roost.reconcile.engine_life import Health

NAMES = MetricNames(running=("e:running",), waiting=("e:waiting",))


@pytest.mark.parametrize(
    "page",
    [
        # Minutes of the parser's time, in which the agent would do nothing else.
        'e:running{l="' + '\\"' * 1_900_000 + '"} 1',
        "e:running{" + "," * 3_900_000 + "} 1",
        "e:running " + "9" * 3_900_000,
        "e:running 1\n" * 300_000,
    ],
    ids=["escapes", "commas", "digits", "series"],
)
def test_a_page_made_to_occupy_the_agent_is_not_measured(page: str) -> None:
    assert probe.parse_load(page, NAMES) is None


def test_a_long_line_that_nobody_asked_for_changes_nothing() -> None:
    page = 'other{l="' + '\\"' * 100_000 + '"} 1\ne:running 2\n'
    assert probe.parse_load(page, NAMES) == Load(running=2)


def test_other_line_breaks_in_a_label_do_not_break_its_line() -> None:
    page = 'e:running{model="a\u2028b\x0bc"} 2\ne:waiting 1\r\n'
    assert probe.parse_load(page, NAMES) == Load(running=2, waiting=1)


def test_an_engine_that_answers_byte_by_byte_without_an_end_is_silent() -> None:
    async def story() -> None:
        ended = asyncio.Semaphore(0)

        async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not writer.is_closing():
                    writer.write(b"e")
                    await writer.drain()
                    await asyncio.sleep(0.1)
                await writer.wait_closed()
            ended.release()

        async with (
            await asyncio.start_server(drip, "127.0.0.1", 0) as server,
            probe.client() as http,
        ):
            spec = shard("p1", port=server.sockets[0].getsockname()[1])
            engine = adapter(Engine.LLAMA_CPP)
            health, load = await asyncio.gather(
                probe.health(http, engine, spec), probe.scrape(http, engine, spec)
            )
            await ended.acquire()
            await ended.acquire()
        assert health is Health.SILENT
        assert load is None

    asyncio.run(asyncio.wait_for(story(), 120))
