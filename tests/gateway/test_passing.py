"""What reaches the engine and what reaches the client: the same bytes, but for the model's name.

B043: an engine's refusal is passed on as it is. B051: a model without a replica is not unknown.
"""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import json
from pathlib import Path

import pytest

from gateway.twins import (
    DONE,
    ENGINE_KEY,
    KEY,
    STREAM_HEAD,
    Received,
    Wire,
    answer,
    ask,
    chat,
    chunk,
    completion,
    connect,
    counted,
    engine,
    event,
    gateway,
    in_loop,
    log_of,
    qwen,
    request,
    silent,
    until,
    whole_stream,
)
from roost.formats.routing import RoutedModel


@in_loop
async def test_a_body_reaches_the_engine_byte_for_byte(tmp_path: Path) -> None:
    body = (
        b'{ "model" : "qwen" ,"max_tokens":1.50,"unknown_field":{"b":2,"a":1},'
        b'"messages":[{"content":"\\u00e9 \xc3\xa9"}],"max_completion_tokens":10 }\n'
    )
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(body))
        assert got.status == 200
        assert one.received[0].body == body


@in_loop
async def test_an_answer_reaches_the_client_byte_for_byte(tmp_path: Path) -> None:
    body = '{ "x" : 1.50, "model": "qwen", "timings":{"b":2,"a":1} }\n'
    async with engine(answer(body)) as one, gateway(tmp_path, qwen(one)) as it:
        assert (await ask(it, request(chat()))).body == body.encode()


@in_loop
async def test_the_engine_sees_its_own_key_and_never_the_clients(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(
            it,
            request(
                chat(),
                path="/v1/chat/completions?api_key=secret-in-the-query",
                headers=[
                    f"X-Api-Key: {KEY}",
                    "Cookie: s=1",
                    "Proxy-Authorization: Basic zzz",
                    "Connection: keep-alive, X-Hop",
                    "X-Hop: 1",
                    "X-Request-Id: abc-1",
                    "OpenAI-Organization: o",
                    "traceparent: 00-1-2-01",
                ],
            ),
        )
        assert got.status == 200
        received = one.received[0]
        assert received.header("authorization") == f"Bearer {ENGINE_KEY}"
        assert received.path == "/v1/chat/completions"
        assert received.header("host") == f"127.0.0.1:{one.port}"
        assert received.header("accept-encoding") == "identity"
        assert received.header("x-request-id") == "abc-1"
        assert received.header("traceparent") == "00-1-2-01"
        for name in ("x-api-key", "cookie", "proxy-authorization", "connection", "x-hop"):
            assert received.header(name) is None
        assert KEY not in str(received.headers)
        assert got.headers["x-request-id"] == "abc-1"


@in_loop
async def test_a_request_id_is_made_when_none_or_no_plain_one_is_given(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        ids = []
        for headers in ([], [], ['X-Request-Id: "; rm']):
            got = await ask(it, request(chat(), headers=headers))
            ids.append(got.headers["x-request-id"])
        assert [r.header("x-request-id") for r in one.received] == ids
        assert len(set(ids)) == 3
        assert all(text.startswith("req-") for text in ids)


@in_loop
async def test_the_engines_hop_by_hop_headers_stay_behind(tmp_path: Path) -> None:
    script = answer(
        completion(),
        extra="Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        "X-Request-Id: engine's\r\nServer: llama.cpp\r\nX-Other: 2\r\n",
    )
    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(), headers=["X-Request-Id: mine"]))
        assert got.headers["x-request-id"] == "mine"
        assert got.headers["x-other"] == "2"
        assert got.headers["server"] == "llama.cpp"
        for name in ("connection", "keep-alive", "x-hop"):
            assert name not in got.headers


@in_loop
async def test_an_alias_becomes_the_models_name_and_back(tmp_path: Path) -> None:
    text = 'the \\"model\\":\\"qwen\\" is qwen'
    body = (
        '{"id":1,"nested":{"model":"qwen"},"choices":[{"message":{"content":"' + text + '"}}],'
        '"model":"qwen"}'
    )
    async with engine(answer(body)) as one, gateway(tmp_path, qwen(one)) as it:
        asked = b'{"messages":[{"content":"\\"model\\": \\"coder\\""}],"metadata":{"model":"coder"},"model" : "coder"}'
        got = await ask(it, request(asked))
        assert one.received[0].body == asked[: asked.rindex(b'"coder"')] + b'"qwen"}'
        assert got.body.decode() == body[: body.rindex('"qwen"')] + '"coder"}'
        assert got.headers["content-length"] == str(len(got.body))


@in_loop
async def test_a_chunked_answer_is_renamed_too(tmp_path: Path) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
            chunk(b'{"id":"1","mod'),
        )
        await wire.send(chunk(b'el":"qw'), chunk(b'en"}'), b"0\r\n\r\n")

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        assert (await ask(it, request(chat("coder")))).body == b'{"id":"1","model":"coder"}'
        assert (await ask(it, request(chat("qwen")))).body == b'{"id":"1","model":"qwen"}'


@in_loop
async def test_an_engine_that_calls_the_model_otherwise_is_corrected(tmp_path: Path) -> None:
    async with (
        engine(answer(completion("/models/qwen.gguf"))) as one,
        gateway(tmp_path, qwen(one)) as it,
    ):
        assert (await ask(it, request(chat()))).json["model"] == "qwen"


@pytest.mark.parametrize("pace", ["whole", "bytes", "two events"])
@in_loop
async def test_every_event_of_a_stream_carries_the_name_that_was_asked_for(
    tmp_path: Path, pace: str
) -> None:
    events = [
        b": ping\n\n",
        event('"model":"qwen" é'),
        event("b", nested={"model": "qwen"}),
        b"event: x\ndata: not json\n\n",
        DONE,
    ]

    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        if pace == "whole":
            for one in events:
                await wire.send(chunk(one))
        elif pace == "two events":
            await wire.send(chunk(events[0] + events[1]), chunk(b"".join(events[2:])))
        else:
            for byte in b"".join(chunk(one) for one in events):
                await wire.send(bytes([byte]))
        await wire.send(b"0\r\n\r\n")

    expected = [
        events[0],
        event('"model":"qwen" é', "coder"),
        event("b", "coder", nested={"model": "qwen"}),
        events[3],
        DONE,
    ]
    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat("coder", stream=True)))
        assert got.whole
        assert got.body == b"".join(expected)
        same = await ask(it, request(chat("qwen", stream=True)))
        assert same.whole
        assert same.body == b"".join(events)


@pytest.mark.parametrize("split", [1, 7, 1000])
@pytest.mark.parametrize(("path", "inside"), [("responses", "response"), ("messages", "message")])
@in_loop
async def test_a_name_inside_an_events_object_is_the_one_that_was_asked_for(
    tmp_path: Path, path: str, inside: str, split: int
) -> None:
    def events(name: str) -> bytes:
        deep = {"model": "qwen", "input": [{inside: {"model": "qwen"}}]}
        said = [
            {"type": "start", inside: {"id": "r-1", "output": [deep], "model": name}},
            {"type": "delta", "delta": '"model":"qwen"', "item": {"model": "qwen"}},
            {"type": "start", inside: {"model": name, "tools": [deep]}, "last": {"model": "qwen"}},
            {"type": "response.completed"},
            {"type": "message_stop"},
        ]
        return b"".join(b"event: x\ndata: %b\n\n" % json.dumps(it).encode() for it in said)

    async def script(_received: Received, wire: Wire) -> None:
        whole = events("qwen")
        parts = [whole[at : at + split] for at in range(0, len(whole), split)]
        await wire.send(STREAM_HEAD, *map(chunk, parts), b"0\r\n\r\n")

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        for name in ("coder", "qwen"):
            got = await ask(it, request(chat(name, stream=True), path=f"/v1/{path}"))
            assert got.whole
            assert got.body == events(name)


@in_loop
async def test_a_stream_keeps_its_chunks_when_nothing_is_renamed(tmp_path: Path) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        parts = [event("a"), event("b")[:20], event("b")[20:], DONE]
        await wire.send(STREAM_HEAD, *map(chunk, parts), b"0\r\n\r\n")

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(stream=True)))
        assert got.chunks == [event("a"), event("b")[:20], event("b")[20:], DONE]


@in_loop
async def test_a_compressed_answer_is_left_alone(tmp_path: Path) -> None:
    script = answer(b"\x1f\x8b\x08 not looked at", extra="Content-Encoding: gzip\r\n")
    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat("coder")))
        assert got.body == b"\x1f\x8b\x08 not looked at"
        assert got.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("status", "extra", "kept"),
    [
        ("400 Bad Request", "", None),
        ("422 Unprocessable Entity", "", None),
        ("429 Too Many Requests", "Retry-After: 7\r\n", "7"),
        ("429 Too Many Requests", "", "1"),
        ("500 Internal Server Error", "", None),
        ("501 Not Implemented", "", None),
        ("503 Service Unavailable", "", "1"),
    ],
)
@in_loop
async def test_an_engines_refusal_arrives_as_it_was_said(
    tmp_path: Path, status: str, extra: str, kept: str | None
) -> None:
    body = '{"error":{"code":400,"message":"request (6031 tokens) exceeds","model":"qwen"}}'
    async with engine(answer(body, status=status, extra=extra)) as one:
        async with gateway(tmp_path, qwen(one)) as it:
            got = await ask(it, request(chat("coder", stream=True)))
            assert (got.status, got.body.decode()) == (int(status[:3]), body)
            assert got.headers.get("retry-after") == kept
            assert len(one.received) == 1
            assert counted(it) == {("qwen", int(status[:3])): 1}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n",
    ],
)
@in_loop
async def test_an_empty_answer_is_an_error(tmp_path: Path, head: bytes, stream: bool) -> None:
    async def script(_received: Received, wire: Wire) -> None:
        await wire.send(head)

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(stream=stream)))
        assert got.status == 502 or (not got.whole and b'"error"' in got.body)
        assert counted(it) == {("qwen", 502): 1}


@in_loop
async def test_the_log_says_who_asked_what_of_whom_and_not_a_word_of_the_prompt(
    tmp_path: Path,
) -> None:
    async with engine(whole_stream) as one, gateway(tmp_path, qwen(one)) as it:
        body = chat("coder", stream=True, messages=[{"role": "user", "content": "my secret"}])
        await ask(it, request(body, headers=["X-Request-Id: r-1"]))
        one.script = answer(completion())
        await ask(it, request(chat()))
        await ask(it, request(chat("nope-" + "x" * 500), key=KEY))
        await ask(it, request(chat(), key="roost-a-mistyped-key"))
    events = [line for line in log_of(tmp_path) if line["event"] == "gateway.request"]
    first = events[0]
    assert first | {"at": 0, "ttft_ms": 0, "duration_ms": 0} == {
        "event": "gateway.request",
        "at": 0,
        "request": "r-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "ended_by": "engine",
        "duration_ms": 0,
        "key": "laptop",
        "model": "qwen",
        "replica": "qwen-0",
        "stream": True,
        "ttft_ms": 0,
        "tokens_in": 5,
        "tokens_out": 6,
    }
    assert (events[1]["tokens_in"], events[1]["tokens_out"]) == (3, 4)
    assert (events[2]["status"], events[2]["model"]) == (404, "_unknown")
    text = (tmp_path / "log").read_text()
    for secret in ("my secret", KEY, ENGINE_KEY, "mistyped"):
        assert secret not in text


@in_loop
async def test_no_key_is_in_an_error_a_metric_or_what_the_gateway_shows_of_itself(
    tmp_path: Path,
) -> None:
    async with engine(silent) as one, gateway(tmp_path, qwen(one)) as it:
        await one.stop()
        refused = await ask(it, request(chat()))
        assert refused.status == 503
        wrong = await ask(it, request(chat(), key="roost-wrong"))
        metrics = await ask_monitor(it.metrics_port, "/metrics")
        for text in (
            refused.body,
            wrong.body,
            metrics,
            repr(it.table.models["qwen"].routed).encode(),
        ):
            assert KEY.encode() not in text
            assert ENGINE_KEY.encode() not in text
            assert b"roost-wrong" not in text


async def ask_monitor(port: int, path: str) -> bytes:
    import asyncio

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    text = await reader.read(-1)
    writer.close()
    return text


@in_loop
async def test_metrics_count_by_model_and_status_and_unknown_names_share_one_label(
    tmp_path: Path,
) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        await ask(it, request(chat()))
        await ask(it, request(chat("coder")))
        for number in range(3):
            await ask(it, request(chat(f"unknown-{number}")))
        text = (await ask_monitor(it.metrics_port, "/metrics")).decode()
        assert 'roost_gateway_requests_total{code="200",model="qwen"} 2.0' in text
        assert 'roost_gateway_requests_total{code="404",model="_unknown"} 3.0' in text
        assert "unknown-1" not in text
        assert 'roost_gateway_ttft_seconds_count{model="qwen"} 2.0' in text
        assert 'roost_gateway_queue_depth{model="qwen"} 0.0' in text
        assert "roost_gateway_snapshot_age_seconds " in text
        assert b"200 OK" in await ask_monitor(it.metrics_port, "/healthz")
        assert b"200 OK" in await ask_monitor(it.metrics_port, "/readyz")
        assert b"404" in await ask_monitor(it.metrics_port, "/v1/models")


@in_loop
async def test_the_list_has_every_name_a_client_may_use(tmp_path: Path) -> None:
    async with engine(silent) as one:
        models = (qwen(one), RoutedModel(name="org/cold", state="loading"))
        async with gateway(tmp_path, *models) as it:
            got = await ask(it, request(method="GET", path="/v1/models"))
            assert [entry["id"] for entry in got.json["data"]] == ["qwen", "coder", "org/cold"]
            assert got.json["object"] == "list"
            for path in ("/v1/models/org/cold", "/v1/models/org%2Fcold"):
                one_model = await ask(it, request(method="GET", path=path))
                assert one_model.json["id"] == "org/cold"
            absent = await ask(it, request(method="GET", path="/v1/models/nope"))
            assert (absent.status, absent.json["error"]["code"]) == (404, "model_not_found")
            head = await ask(it, request(method="HEAD", path="/v1/models"), bodiless=True)
            assert head.status == 200
            assert int(head.headers["content-length"]) == len(got.body)


@in_loop
async def test_every_listed_path_is_passed_on_and_no_other(tmp_path: Path) -> None:
    paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/rerank",
        "/tokenize",
        "/v1/audio/speech",
    ]
    async with engine(answer('{"ok":1}')) as one, gateway(tmp_path, qwen(one)) as it:
        for path in paths:
            assert (await ask(it, request(chat(), path=path))).status == 200
        assert [received.path for received in one.received] == paths
        for path in (
            "/sleep",
            "/v1/load_lora_adapter",
            "/metrics",
            "/slots",
            "/health",
            "/v1",
            "/",
        ):
            got = await ask(it, request(chat(), path=path))
            assert (got.status, got.json["error"]["code"]) == (404, "not_found")
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
            got = await ask(it, request(method=method, path="/v1/chat/completions"))
            assert (got.status, got.headers["allow"]) == (405, "POST")
        head = await ask(it, request(method="HEAD", path="/v1/chat/completions"), bodiless=True)
        assert head.status == 405
        assert len(one.received) == len(paths)


@in_loop
async def test_a_model_that_is_there_without_a_replica_is_503_and_one_that_is_not_is_404(
    tmp_path: Path,
) -> None:
    models = (
        RoutedModel(name="p", replicas=2, state="loading"),
        RoutedModel(name="q", state="pending: no profile fits"),
        RoutedModel(name="s", replicas=0),
    )
    async with gateway(tmp_path, *models) as it:
        words = {"p": "loading", "q": "pending: no profile fits", "s": "scaled to 0"}
        codes = {}
        for name, reason in words.items():
            got = await ask(it, request(chat(name)))
            assert got.status == 503
            assert int(got.headers["retry-after"]) >= 1
            assert reason in got.json["error"]["message"]
            codes[name] = got.json["error"]["code"]
        assert codes == {
            "p": "model_not_ready",
            "q": "model_not_ready",
            "s": "model_scaled_to_zero",
        }
        nope = await ask(it, request(chat("nope")))
        assert (nope.status, nope.json["error"]["code"]) == (404, "model_not_found")
        listed = await ask(it, request(method="GET", path="/v1/models"))
        assert [entry["id"] for entry in listed.json["data"]] == ["p", "q", "s"]


@in_loop
async def test_a_name_at_the_end_of_a_long_body_is_found(tmp_path: Path) -> None:
    body = json.dumps({"messages": [{"content": "x" * 100_000}], "model": "qwen"})
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        assert (await ask(it, request(body))).status == 200
        assert one.received[0].body == body.encode()


@in_loop
async def test_connections_to_an_engine_are_used_again_the_last_one_first(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        async with await connect(it) as client:
            for _ in range(5):
                await client.send(request(chat()))
                assert (await client.answer()).status == 200
        assert one.connections == 1
        assert len(it.table.models["qwen"].endpoints[0].idle) == 1


@in_loop
async def test_an_idle_connection_to_an_engine_is_closed_in_time(tmp_path: Path) -> None:
    from roost.gateway.limits import Limits

    limits = Limits(engine_idle_s=0.2, sweep_s=0.05, drain_s=0.2)
    async with (
        engine(answer(completion())) as one,
        gateway(tmp_path, qwen(one), limits=limits) as it,
    ):
        await ask(it, request(chat()))
        await until(lambda: one.open == 0)
        assert it.table.models["qwen"].endpoints[0].idle == []
