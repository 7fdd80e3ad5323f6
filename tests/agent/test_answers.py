"""What a shard's engine is known to be busy with, over pages that change, fail and lack series."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from agent.node import shard
from roost.agent.supervise import probe
from roost.agent.supervise.answers import FIRST_SERIES_S, Answers
from roost.domain.profile import MetricNames
from roost.domain.replica import Load, ShardSpec

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV = "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc"
PROCESS = "# TYPE process_open_fds gauge\nprocess_open_fds 12.0\n"


def vllm(running: str, waiting: str, kv: str | None, name: str = "kv_cache_usage_perc") -> str:
    """A page of vLLM's, by the written values; `None`: it has no such series."""
    labels = '{engine="0",model_name="m"}'
    page = f"{PROCESS}{RUNNING}{labels} {running}\n{WAITING}{labels} {waiting}\n"
    return page if kv is None else f"{page}vllm:{name}{labels} {kv}\n"


@dataclass
class Engine:
    """Listens, and answers every question with one page, or cuts the connection."""

    page: str | None = None
    """`None`: it is cut."""
    status: int = 200
    port: int = 0
    now: float = 1000.0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if self.page is not None:
            body = self.page.encode()
            head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    def spec(self, engine: str = "vllm") -> ShardSpec:
        return shard(engine=engine, port=self.port)


Story = Callable[[Engine, Answers], Awaitable[None]]


def tell(story: Story) -> None:
    async def whole() -> None:
        engine = Engine()
        async with (
            await asyncio.start_server(engine.answer, "127.0.0.1", 0) as server,
            probe.client() as http,
        ):
            engine.port = server.sockets[0].getsockname()[1]
            await story(engine, Answers(http, lambda: engine.now))

    asyncio.run(asyncio.wait_for(whole(), 60))


def lacks(answers: Answers) -> tuple[str, ...]:
    """Asked anew: it changes."""
    return answers.unmeasured


def in_flight(answers: Answers) -> float | None:
    """Asked anew: it changes."""
    return answers.in_flight


def test_both_names_of_a_gauge_are_understood_and_one_that_is_missing_is_named_and_not_zero() -> (
    None
):
    """B035: new name at 0.95, old name at 0.10, neither."""

    async def story(engine: Engine, answers: Answers) -> None:
        pages = {
            0.95: vllm("2", "1", "0.95"),
            0.10: vllm("2", "1", "0.10", "gpu_cache_usage_perc"),
            None: vllm("2", "1", "0.5", "cache_fill_ratio"),
        }
        for kv, engine.page in pages.items():
            await answers.ask_load(engine.spec())
            assert answers.load == Load(running=2, waiting=1, kv_usage=kv)
            assert lacks(answers) == (() if kv is not None else (KV,))

    tell(story)


def test_a_number_that_waits_and_is_missing_is_not_taken_for_an_idle_engine() -> None:
    """B035: a drain would end it with requests in its queue."""

    async def story(engine: Engine, answers: Answers) -> None:
        engine.page = vllm("0", "0", "0").replace(WAITING, "vllm:num_requests_queued")
        await answers.ask_load(engine.spec())
        assert answers.load == Load(running=0, waiting=None, kv_usage=0)
        assert lacks(answers) == (WAITING,)
        assert in_flight(answers) is None
        # A mapping that names no number that waits is complete.
        spec = replace(engine.spec(), metrics=MetricNames(running=(RUNNING,)))
        await answers.ask_load(spec)
        assert (in_flight(answers), lacks(answers)) == (0, ())

    tell(story)


def test_newer_builds_of_llama_cpp_have_no_kv_gauge_and_nobody_is_told() -> None:
    """B035: unless somebody says under which name it is to be found."""

    async def story(engine: Engine, answers: Answers) -> None:
        engine.page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
        spec = engine.spec("llama.cpp")
        await answers.ask_load(spec)
        assert answers.load == Load(running=1, waiting=0)
        assert lacks(answers) == ()
        names = MetricNames(running=("llamacpp:requests_processing",), kv_usage=("my:kv",))
        await answers.ask_load(replace(spec, metrics=names))
        assert lacks(answers) == ("my:kv",)

    tell(story)


def test_an_engine_that_has_measured_nothing_yet_is_given_time_before_it_is_said() -> None:
    """B036: a page with series of the process alone."""

    async def story(engine: Engine, answers: Answers) -> None:
        engine.page = PROCESS
        for _ in range(3):
            await answers.ask_load(engine.spec())
            assert (answers.load, in_flight(answers), lacks(answers)) == (None, None, ())
            engine.now += FIRST_SERIES_S / 3 - 1
        engine.now += 3
        assert lacks(answers) == (RUNNING, WAITING, KV)
        # The next process has its own time.
        answers.forget_load()
        await answers.ask_load(engine.spec())
        assert lacks(answers) == ()
        engine.page = vllm("1", "0", "0.2")
        await answers.ask_load(engine.spec())
        assert answers.load == Load(running=1, waiting=0, kv_usage=0.2)
        assert lacks(answers) == ()

    tell(story)


@pytest.mark.parametrize("status", [404, 501])
def test_no_page_at_all_is_said_after_a_while_too(status: int) -> None:
    """B035: llama.cpp without --metrics says 501 for ever."""

    async def story(engine: Engine, answers: Answers) -> None:
        engine.page, engine.status = "This server does not support metrics endpoint.", status
        await answers.ask_load(engine.spec("llama.cpp"))
        assert (answers.load, lacks(answers)) == (None, ())
        engine.now += FIRST_SERIES_S
        await answers.ask_load(engine.spec("llama.cpp"))
        assert lacks(answers) == ("llamacpp:requests_processing", "llamacpp:requests_deferred")

    tell(story)


def test_a_failed_scrape_a_restart_and_values_that_are_none_leave_no_old_negative_or_huge_number() -> (
    None
):
    """B039: what is shown is the last look's, or nothing; no figure of Roost's counts an engine's."""

    async def story(engine: Engine, answers: Answers) -> None:
        looks: list[tuple[str | None, Load | None]] = [
            (vllm("100", "0", "0.9"), Load(running=100, waiting=0, kv_usage=0.9)),
            (vllm("175", "3", "1"), Load(running=175, waiting=3, kv_usage=1)),
            (None, None),  # cut
            (vllm("20", "0", "0.1"), Load(running=20, waiting=0, kv_usage=0.1)),
            (vllm("NaN", "2", "+Inf"), Load(running=None, waiting=2)),
            (vllm("-5", "-1", "-0.1"), None),
            (vllm("35", "0", "0.2"), Load(running=35, waiting=0, kv_usage=0.2)),
        ]
        for engine.page, load in looks:
            await answers.ask_load(engine.spec())
            assert answers.load == load
            assert lacks(answers) == (), "each series is there, whatever its value"
        # The process that it was of is gone.
        answers.forget_load()
        assert answers.load is None

    tell(story)


def test_a_look_that_failed_tells_nothing_of_what_a_page_lacks() -> None:
    async def story(engine: Engine, answers: Answers) -> None:
        engine.page = vllm("1", "0", None)
        await answers.ask_load(engine.spec())
        assert lacks(answers) == (KV,)
        engine.page = None
        await answers.ask_load(engine.spec())
        assert (answers.load, lacks(answers)) == (None, (KV,))

    tell(story)
