"""Nothing is served without a key (B067)."""

from pathlib import Path

import pytest

from gateway.twins import (
    KEY,
    answer,
    ask,
    chat,
    completion,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
    snapshot,
)
from roost.gateway.apis import FORWARDED

PATHS = [
    *[path.decode() for path in FORWARDED],
    "/v1/models",
    "/v1/models/qwen",
    "//v1/models",
    "/V1/models",
    "/v1/../metrics",
    "/v1/./models",
    "/v1%2fmodels",
    "/v1/models/",
    "/v1/models?x=1",
    "/v1/models;x=1",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/%76%31/models",
    "/metrics",
    "/healthz",
    "/readyz",
    "/docs",
    "/openapi.json",
    "/sleep",
    "/slots",
    "/v1/load_lora_adapter",
    "/",
    "*",
    "http://gateway/v1/models",
]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@pytest.mark.parametrize("key", [None, "", "roost-wrong", KEY.upper(), KEY + "x", KEY[:-1]])
@in_loop
async def test_without_a_known_key_every_path_and_method_is_401(
    tmp_path: Path, key: str | None
) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        for path in PATHS:
            for method in METHODS:
                if path == "*" and method != "OPTIONS":
                    continue
                got = await ask(
                    it,
                    request(chat(), method=method, path=path, key=key),
                    bodiless=method == "HEAD",
                )
                assert got.status == 401, (method, path)
                if method != "HEAD":
                    assert got.json["error"]["code"] == "invalid_api_key"
        assert one.received == []


@in_loop
async def test_with_a_key_only_the_listed_paths_reach_an_engine(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        form = b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nqwen\r\n--X--\r\n'
        form_type = ["Content-Type: multipart/form-data; boundary=X"]
        for path in PATHS:
            if path == "*":
                continue
            api = FORWARDED.get(path.encode())
            if api is not None and api.form:
                got = await ask(it, request(form, path=path, headers=form_type))
            else:
                got = await ask(it, request(chat(), path=path))
            assert (got.status == 200) == (api is not None), path
        assert {received.path.encode() for received in one.received} == set(FORWARDED)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Authorization: Bearer {KEY}", 200),
        (f"Authorization: bearer {KEY}", 200),
        (f"Authorization: BEARER  {KEY}", 200),
        (f"x-api-key: {KEY}", 200),
        (f"Authorization: Basic {KEY}", 401),
        (f"Authorization: {KEY}", 401),
        (f"Authorization: Bearer{KEY}", 401),
        ("Authorization: Bearer", 401),
        (f"Proxy-Authorization: Bearer {KEY}", 401),
        (f"api-key: {KEY}", 401),
    ],
)
@in_loop
async def test_how_a_key_is_sent(tmp_path: Path, header: str, status: int) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        got = await ask(it, request(chat(), key=None, headers=[header]))
        assert got.status == status


@in_loop
async def test_a_key_in_the_query_is_none(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen()) as it:
        path = f"/v1/models?api_key={KEY}"
        assert (await ask(it, request(method="GET", path=path, key=None))).status == 401
    assert KEY not in (tmp_path / "log").read_text()


@in_loop
async def test_a_revoked_key_ends_with_the_next_snapshot(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        assert (await ask(it, request(chat()))).status == 200
        it.table.adopt(snapshot(qwen(one), revision=2, keys=()))
        assert (await ask(it, request(chat()))).status == 401


@in_loop
async def test_a_refused_upload_is_not_read(tmp_path: Path) -> None:
    from gateway.twins import connect

    async with gateway(tmp_path, qwen()) as it, await connect(it) as client:
        await client.send(request(key=None, headers=["Content-Length: 30000000"]) + b"x" * 100_000)
        got = await client.answer()
        assert (got.status, got.headers["connection"]) == (401, "close")
        assert it.context.body_bytes == 0
