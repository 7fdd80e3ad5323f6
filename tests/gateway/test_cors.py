"""Which web pages may use the gateway, and that engines have no say in it."""

from pathlib import Path

import pytest

from gateway.twins import (
    answer,
    ask,
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

PAGE = "https://chat.example"
PREFLIGHT = [
    f"Origin: {PAGE}",
    "Access-Control-Request-Method: POST",
    "Access-Control-Request-Headers: authorization,content-type,x-stainless-os",
]
OWN = "Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\n"


def said(headers: dict[str, str]) -> dict[str, str]:
    return {name: v for name, v in headers.items() if name.startswith("access-control-")}


@in_loop
async def test_a_browser_of_a_page_that_is_let_in_is_told_what_it_may_ask(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, qwen(), cors_origins=(PAGE,)) as it,
        await connect(it) as client,
    ):
        for _ in range(2):
            await client.send(request(method="OPTIONS", key=None, headers=PREFLIGHT))
            got = await client.answer()
            assert got.status == 204
            assert got.headers["vary"] == "Origin"
            assert said(got.headers) == {
                "access-control-allow-origin": PAGE,
                "access-control-allow-methods": "GET, HEAD, POST",
                "access-control-allow-headers": "authorization,content-type,x-stainless-os",
                "access-control-expose-headers": "retry-after, x-request-id",
                "access-control-max-age": "600",
            }


@in_loop
async def test_every_answer_to_such_a_page_says_that_it_may_be_read(tmp_path: Path) -> None:
    async with (
        engine(answer(completion(), extra=OWN)) as one,
        gateway(tmp_path, qwen(one), cors_origins=(PAGE,)) as it,
    ):
        origin = [f"Origin: {PAGE}"]
        wanted = {
            "access-control-allow-origin": PAGE,
            "access-control-expose-headers": "retry-after, x-request-id",
        }
        got = await ask(it, request(chat(), headers=origin))
        assert (got.status, said(got.headers)) == (200, wanted)
        assert one.received[0].header("origin") is None
        one.script = whole_stream
        got = await ask(it, request(chat(stream=True), headers=origin))
        assert (got.whole, said(got.headers)) == (True, wanted)
        for refused in (
            request(chat(), key="wrong", headers=origin),
            request(chat("nope"), headers=origin),
            request(method="GET", path="/v1/models", headers=origin),
        ):
            assert said((await ask(it, refused)).headers) == wanted


@pytest.mark.parametrize(
    ("let_in", "origin"),
    [
        ((), PAGE),
        ((PAGE,), "https://evil.example"),
        ((PAGE,), "http://chat.example"),
        ((PAGE,), "https://chat.example.evil"),
        ((PAGE,), "null"),
    ],
)
@in_loop
async def test_other_pages_are_kept_out_whatever_the_engine_says(
    tmp_path: Path, let_in: tuple[str, ...], origin: str
) -> None:
    async with (
        engine(answer(completion(), extra=OWN)) as one,
        gateway(tmp_path, qwen(one), cors_origins=let_in) as it,
    ):
        got = await ask(it, request(chat(), headers=[f"Origin: {origin}"]))
        assert (got.status, said(got.headers)) == (200, {})
        asked = [f"Origin: {origin}", *PREFLIGHT[1:]]
        got = await ask(it, request(method="OPTIONS", key=None, headers=asked))
        assert (got.status, said(got.headers)) == (401, {})


@in_loop
async def test_all_pages_can_be_let_in(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen(), cors_origins=("*",)) as it:
        got = await ask(it, request(method="OPTIONS", key=None, headers=PREFLIGHT))
        assert got.status == 204
        assert got.headers["access-control-allow-origin"] == "*"
        assert "vary" not in got.headers


@in_loop
async def test_what_only_looks_like_a_preflight_needs_a_key(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen(), cors_origins=(PAGE,)) as it:
        for asked in (
            request(method="OPTIONS", key=None, headers=PREFLIGHT[:1]),
            request(method="OPTIONS", key=None, headers=PREFLIGHT[1:]),
            request("{}", method="OPTIONS", key=None, headers=PREFLIGHT),
            request(method="GET", path="/v1/models", key=None, headers=PREFLIGHT),
        ):
            assert (await ask(it, asked)).status == 401


@in_loop
async def test_strange_header_names_are_not_echoed(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen(), cors_origins=(PAGE,)) as it:
        asked = [*PREFLIGHT[:2], "Access-Control-Request-Headers: x: y"]
        got = await ask(it, request(method="OPTIONS", key=None, headers=asked))
        assert got.headers["access-control-allow-headers"] == "authorization, content-type"
