"""The clients that people have, the OpenAI SDK before all, against a real engine behind the gateway."""

import asyncio
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import jsonschema
import openai
import pytest

from gateway.smuggling import attacks
from running import MODEL_FILE, Served, wait_for

EMBEDDER: Final = f"""\
models:
- name: embedder
  aliases: [vectors]
  profiles:
  - name: cpu
    engine: llama.cpp
    source: {MODEL_FILE}
    min_memory_gb: 0.5
    slots: 2
    args: ["-c", "512", "-t", "1", "--embeddings", "--pooling", "mean"]
"""
HELLO: Final[list[Any]] = [{"role": "user", "content": "Say hello."}]
COUNT: Final[list[Any]] = [{"role": "user", "content": "Count: one, two, three, four"}]
WEATHER: Final[Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(shared: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=shared.base_url, api_key=shared.key, max_retries=0, timeout=60)


def test_it_lists_models(client: openai.OpenAI) -> None:
    assert "smollm2" in {model.id for model in client.models.list()}


def test_it_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
    )
    assert answer.model == "smollm2"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8


def test_an_alias_is_answered_under_its_own_name(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Say hello."}], max_tokens=4
    )
    assert answer.model == "small"


def test_it_streams_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Count to five."}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    assert {chunk.model for chunk in chunks} == {"smollm2"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_it_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2", prompt="Once upon a", max_tokens=4)
    assert answer.choices[0].text


def test_several_at_once_are_each_answered(shared: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, words: int) -> tuple[int, str]:
        stream = await client.chat.completions.create(
            model="small",
            messages=HELLO,
            max_tokens=words,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [part async for part in stream]
        assert {part.model for part in chunks} == {"small"}
        assert chunks[-1].usage is not None
        text = "".join(part.choices[0].delta.content or "" for part in chunks if part.choices)
        return chunks[-1].usage.completion_tokens, text

    async def all_of_them() -> list[tuple[int, str]]:
        async with openai.AsyncOpenAI(
            base_url=shared.base_url, api_key=shared.key, max_retries=0, timeout=60
        ) as client:
            return await asyncio.gather(*(ask(client, words) for words in range(1, 7)))

    answers = asyncio.run(all_of_them())
    # Each has its own: no answer is longer than what was asked for, in whatever order they came.
    assert all(0 < used <= words for words, (used, _) in enumerate(answers, 1))
    assert all(text for used, text in answers if used > 1)


def test_tools_are_passed_on_and_the_answer_is_understood(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[WEATHER],
        max_tokens=12,
    )
    # So small a model may call it or not.
    choice = answer.choices[0]
    assert choice.finish_reason in ("stop", "length", "tool_calls")
    assert choice.message.content or choice.message.tool_calls
    for call in choice.message.tool_calls or ():
        assert call.type == "function"
        assert call.function.name == "weather"


def test_tools_that_are_none_are_the_engines_to_refuse(client: openai.OpenAI) -> None:
    broken: Any = [{"type": "function", "function": {"description": "It has no name."}}]
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="smollm2", messages=HELLO, tools=broken, max_tokens=1)
    # The engine read them, and says so in its own words.
    assert refused.value.response.headers["server"] == "llama.cpp"
    assert "name" in refused.value.message


def test_an_answer_by_a_schema_is_valid_by_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Make up a person."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "strict": True, "schema": PERSON},
        },
        temperature=0,
        max_tokens=120,
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), PERSON)


def test_responses_are_answered_and_streamed(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="small", input="Say hello.", max_output_tokens=4)
    assert answer.model == "small"
    assert answer.output_text
    with client.responses.create(
        model="small", input="Say hello.", max_output_tokens=4, stream=True
    ) as stream:
        events = list(stream)
    assert events[-1].type == "response.completed"
    whole = [event.response for event in events if hasattr(event, "response")]
    # The first events of llama.cpp's name none.
    assert {response.model for response in whole if response.model} == {"small"}
    assert whole[-1].usage is not None
    assert 0 < whole[-1].usage.output_tokens <= 4


def test_messages_are_answered_and_streamed(shared: Served) -> None:
    # A first token that is half a character (an emoji, say) makes llama.cpp leave out the first event.
    def post(**more: Any) -> httpx2.Response:
        return httpx2.post(
            f"{shared.base_url}/messages",
            headers={"x-api-key": shared.key, "anthropic-version": "2023-06-01"},
            json={"model": "small", "max_tokens": 4, "messages": COUNT, "temperature": 0, **more},
            timeout=60,
        )

    answer = post().json()
    assert (answer["type"], answer["model"]) == ("message", "small")
    assert answer["content"][0]["text"]
    stream = post(stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = [
        json.loads(line.removeprefix("data: "))
        for line in stream.text.splitlines()
        if line.startswith("data: ")
    ]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    assert events[0]["message"]["model"] == "small"


def test_texts_are_embedded_where_the_engine_was_told_to(
    client: openai.OpenAI, shared: Served
) -> None:
    shared.stack.apply(EMBEDDER, "--wait", "--timeout", "90")
    try:
        texts = ["a cat", "a dog", "a cat"]
        answer = client.embeddings.create(model="vectors", input=texts)
        cat, dog, same = (one.embedding for one in answer.data)
        assert answer.model == "vectors"
        assert len(cat) == len(dog) == len(same) > 100
        assert cat == pytest.approx(same, abs=1e-3)
        assert cat != pytest.approx(dog, abs=1e-3)
    finally:
        shared.stack.ctl("delete", "embedder")
        wait_for(lambda: len(shared.stack.engine_specs()) == 1)


def test_what_the_engine_was_not_started_for_it_refuses_in_its_own_words(
    client: openai.OpenAI, shared: Served
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model="smollm2", input="a cat")
    assert refused.value.status_code == 501
    assert "--embeddings" in refused.value.message
    body = {"model": "smollm2", "query": "a", "documents": ["b"]}
    ranked = httpx2.post(
        f"{shared.base_url}/rerank",
        headers={"Authorization": f"Bearer {shared.key}"},
        json=body,
        timeout=30,
    )
    assert (ranked.status_code, ranked.headers["server"]) == (501, "llama.cpp")
    assert "--reranking" in ranked.json()["error"]["message"]


def curl(
    served: Served, body: dict[str, Any], directory: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """A chat by curl; what it says of the connection is on its standard error."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("no curl on this machine")
    file = directory / "body.json"
    file.write_text(json.dumps({"model": "small", "messages": HELLO, "max_tokens": 3, **body}))
    sent = ("--data-binary", f"@{file}", "-H", "Content-Type: application/json")
    ran = subprocess.run(
        [program, "-q", "-K", "-", "-sSv", *sent, *words, f"{served.base_url}/chat/completions"],
        input=f'header = "Authorization: Bearer {served.key}"',
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def test_curl_reads_a_stream(shared: Served, tmp_path: Path) -> None:
    ran = curl(shared, {"stream": True}, tmp_path, "-N")
    events = [line for line in ran.stdout.splitlines() if line]
    assert events[-1] == "data: [DONE]"
    said = [json.loads(line.removeprefix("data: ")) for line in events[:-1]]
    assert {event["model"] for event in said} == {"small"}
    assert "< transfer-encoding: chunked" in ran.stderr.lower()


def test_curl_waits_for_the_word_to_go_on_with_a_large_body(shared: Served, tmp_path: Path) -> None:
    # By itself it asks for that word from 1 MiB on.
    ran = curl(shared, {"metadata": {"filling": "x" * 1_200_000}}, tmp_path)
    assert "> Expect: 100-continue" in ran.stderr
    said = [line for line in ran.stderr.splitlines() if line.startswith("< HTTP/")]
    assert said == ["< HTTP/1.1 100 Continue", "< HTTP/1.1 200 OK"]
    assert json.loads(ran.stdout)["model"] == "small"


@pytest.mark.parametrize("stream", [False, True])
def test_curl_speaks_http_1_0(shared: Served, tmp_path: Path, stream: bool) -> None:
    ran = curl(shared, {"stream": stream}, tmp_path, "-0")
    assert "< HTTP/1.0 200 OK" in ran.stderr
    assert "chunked" not in ran.stderr
    if stream:
        assert ran.stdout.rstrip().endswith("data: [DONE]")
    else:
        assert json.loads(ran.stdout)["choices"][0]["message"]["content"]


def test_a_wrong_key_is_refused(shared: Served) -> None:
    stranger = openai.OpenAI(base_url=shared.base_url, api_key="roost-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.status_code == 401


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(
            model="nope", messages=[{"role": "user", "content": "Hello"}]
        )
    assert missing.value.code == "model_not_found"


def test_a_client_that_leaves_mid_stream_frees_the_engines_slot(
    client: openai.OpenAI, shared: Served
) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Tell me a very long story."}],
        max_tokens=1500,
        stream=True,
    )
    next(iter(stream))
    spec = shared.stack.engine_specs()[0]["spec"]

    def processing() -> float:
        page = httpx2.get(
            f"http://127.0.0.1:{spec['port']}/metrics",
            headers={"Authorization": f"Bearer {spec['key']}"},
            timeout=10,
        ).text
        line = next(li for li in page.splitlines() if li.startswith("llamacpp:requests_processing"))
        return float(line.split()[1])

    wait_for(lambda: processing() == 1)
    stream.close()
    wait_for(lambda: processing() == 0, limit_s=10, every_s=0.02)


def test_requests_that_could_be_read_twice_put_nobody_out_of_step(shared: Served) -> None:
    address = urlsplit(shared.stack.ready["gateway"])
    hidden = (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Content-Length: 47\r\n\r\n" + b'{"model":"smollm2","prompt":"x","max_tokens":1}'
    )

    def tokens(text: str) -> list[int]:
        answered = httpx2.post(
            f"{shared.stack.ready['gateway']}/tokenize",
            headers={"Authorization": f"Bearer {shared.key}"},
            json={"model": "smollm2", "content": text},
            timeout=30,
        )
        assert answered.status_code == 200, answered.text
        found: list[int] = answered.json()["tokens"]
        return found

    mine = {text: tokens(text) for text in ("one", "two three", "four five six")}
    assert len({tuple(found) for found in mine.values()}) == 3
    cases = list(attacks("/tokenize", shared.key, hidden))
    for start in range(0, len(cases), 100):
        for raw in cases[start : start + 100]:
            with socket.create_connection((address.hostname, address.port), timeout=30) as client:
                client.sendall(raw)
                # Let it be judged; what is left unread goes with the connection.
                client.recv(1)
        for text, expected in mine.items():
            assert tokens(text) == expected
