"""The OpenAI SDK against a real engine behind the gateway."""

import socket
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from gateway.smuggling import attacks
from running import Served, wait_for


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
