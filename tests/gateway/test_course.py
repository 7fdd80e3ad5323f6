"""A coroutine without a task: cancelled at once, and nothing left behind."""

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.twins import (
    answer,
    chat,
    completion,
    connect,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
    whole_stream,
)
from roost.gateway.course import Course


@in_loop
async def test_it_runs_to_its_first_wait_and_goes_on_with_the_result() -> None:
    seen: list[object] = []
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    async def work() -> None:
        seen.append("begun")
        seen.append(await future)
        try:
            await failing
        except OSError as error:
            seen.append(error.errno)
        await loop.create_task(part())

    async def part() -> None:
        seen.append("in a task")

    failing: asyncio.Future[None] = loop.create_future()

    Course(work()).begin()
    assert seen == ["begun"]
    future.set_result(7)
    await asyncio.sleep(0)
    assert seen == ["begun", 7]
    failing.set_exception(OSError(5, "broken"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert seen == ["begun", 7, 5, "in a task"]


@pytest.mark.parametrize("ready", [False, True])
@in_loop
async def test_cancelled_it_cleans_up_at_once_and_is_not_run_again(ready: bool) -> None:
    seen: list[str] = []
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await future
            seen.append("went on")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("cleaned up")

    course = Course(work())
    course.begin()
    if ready:
        # The step that follows is on its way already.
        future.set_result(1)
    course.cancel()
    assert seen == ["cancelled", "cleaned up"]
    course.cancel()
    if not ready:
        future.set_result(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["cancelled", "cleaned up"]


@in_loop
async def test_one_that_ends_at_once_needs_no_loop_and_a_fault_is_its_callers() -> None:
    seen: list[str] = []

    async def short() -> None:
        seen.append("over")

    async def faulty() -> None:
        raise ValueError("mine")

    course = Course(short())
    course.begin()
    course.cancel()
    assert seen == ["over"]
    with pytest.raises(ValueError, match="mine"):
        Course(faulty()).begin()


def test_one_that_is_cancelled_before_it_begins_never_does() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")

    course = Course(work())
    course.cancel()
    course.begin()
    assert seen == []


@pytest.mark.parametrize("script", [answer(completion()), whole_stream])
@in_loop
async def test_a_request_leaves_nothing_for_the_collector(tmp_path: Path, script: Any) -> None:
    # Cycles cost a tenth of all time under load before they were avoided.
    async with (
        engine(script) as one,
        gateway(tmp_path, qwen(one)) as it,
        await connect(it) as client,
    ):

        async def ask(times: int) -> None:
            for _ in range(times):
                await client.send(request(chat(stream=script is whole_stream)))
                assert (await client.answer()).whole
                await client.send(request(chat("nope")))
                assert (await client.answer()).status == 404

        await ask(3)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await ask(20)
            gc.collect()
            left = Counter(
                type(one).__qualname__
                for one in gc.garbage
                if type(one).__module__.startswith("roost.")
            )
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not left


@in_loop
async def test_many_requests_in_one_block_are_answered_one_after_the_other(tmp_path: Path) -> None:
    # Each is refused before the next is read: a call within a call would end in a RecursionError.
    async with gateway(tmp_path, qwen()) as it, await connect(it) as client:
        count = 1500
        await client.send(request(chat("nope")) * count)
        for _ in range(count):
            assert (await client.answer()).status == 404
