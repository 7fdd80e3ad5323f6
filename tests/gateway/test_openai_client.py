"""The openai package as a client, as users have it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.twins import (
    KEY,
    STREAM_HEAD,
    Received,
    Wire,
    answer,
    chat,
    chunk,
    completion,
    engine,
    event,
    gateway,
    in_loop,
    qwen,
    whole_stream,
)
from roost.gateway.service import Gateway

Ask = Callable[[openai.OpenAI], Any]


async def using(it: Gateway, use: Ask, *, key: str = KEY) -> Any:
    """Use the package's plain client, which blocks, beside the loop."""

    def run() -> Any:
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{it.port}/v1", api_key=key, max_retries=0, timeout=30
        ) as client:
            return use(client)

    return await asyncio.to_thread(run)


MESSAGES: Any = chat()["messages"]


@in_loop
async def test_models_are_listed(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen()) as it:
        assert await using(it, lambda c: [m.id for m in c.models.list()]) == ["qwen", "coder"]
        assert (await using(it, lambda c: c.models.retrieve("coder"))).id == "coder"


@in_loop
async def test_a_chat_is_answered(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        got = await using(it, lambda c: c.chat.completions.create(model="coder", messages=MESSAGES))
        assert got.model == "coder"
        assert got.choices[0].message.content == "hello"
        assert got.usage.total_tokens == 7


@in_loop
async def test_a_stream_is_read_with_its_usage(tmp_path: Path) -> None:
    async with engine(whole_stream) as one, gateway(tmp_path, qwen(one)) as it:
        got = await using(
            it,
            lambda c: list(
                c.chat.completions.create(
                    model="coder",
                    messages=MESSAGES,
                    stream=True,
                    stream_options={"include_usage": True},
                )
            ),
        )
        assert {part.model for part in got} == {"coder"}
        text = "".join(part.choices[0].delta.content for part in got if part.choices)
        assert text == "word 0word 1word 2"
        assert got[-1].usage.completion_tokens == 6
        assert one.received[0].json["stream_options"] == {"include_usage": True}


@in_loop
async def test_refusals_are_the_packages_own_errors(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen(state="loading")) as it:

        def create(model: str) -> Ask:
            return lambda c: c.chat.completions.create(model=model, messages=MESSAGES)

        with pytest.raises(openai.AuthenticationError) as wrong:
            await using(it, create("qwen"), key="roost-wrong")
        assert wrong.value.code == "invalid_api_key"
        with pytest.raises(openai.NotFoundError) as unknown:
            await using(it, create("nope"))
        assert unknown.value.code == "model_not_found"
        assert unknown.value.param == "model"
        with pytest.raises(openai.InternalServerError) as cold:
            await using(it, create("qwen"))
        assert cold.value.status_code == 503
        assert "loading" in cold.value.message
        assert cold.value.request_id


@in_loop
async def test_a_stream_that_is_cut_raises(tmp_path: Path) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD, chunk(event("a")))
        wire.reset()

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        with pytest.raises(Exception, match=r"engine|closed|incomplete"):
            await using(
                it,
                lambda c: list(
                    c.chat.completions.create(model="qwen", messages=MESSAGES, stream=True)
                ),
            )
