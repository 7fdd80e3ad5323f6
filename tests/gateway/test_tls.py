"""HTTPS, with a certificate that can be renewed while it serves."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from gateway.certificates import TLS, certificate, put
from gateway.twins import (
    Client,
    answer,
    chat,
    completion,
    connect,
    engine,
    gateway,
    in_loop,
    log_of,
    qwen,
    request,
    whole_stream,
)
from roost.errors import Unusable
from roost.gateway.certificate import Certificate
from roost.gateway.service import Gateway


async def secure(it: Gateway, name: str = "one") -> Client:
    trusted = ssl.create_default_context(cafile=str(TLS / f"{name}.pem"))
    return Client(*await asyncio.open_connection("127.0.0.1", it.port, ssl=trusted, limit=2**26))


@in_loop
async def test_answers_and_streams_arrive_over_one_connection(tmp_path: Path) -> None:
    async with (
        engine(answer(completion())) as one,
        gateway(tmp_path, qwen(one), tls=certificate(tmp_path)) as it,
        await secure(it) as client,
    ):
        await client.send(request(chat()))
        assert (await client.answer()).json["choices"][0]["message"]["content"] == "hello"
        one.script = whole_stream
        await client.send(request(chat(stream=True)))
        got = await client.answer()
        assert got.whole
        assert b"[DONE]" in got.body
        await client.send(request(chat("nope"), headers=["Connection: close"]))
        assert (await client.answer()).status == 404
        assert await client.at_end()


@in_loop
async def test_an_answer_that_ends_with_its_connection_is_whole(tmp_path: Path) -> None:
    async with (
        engine(whole_stream) as one,
        gateway(tmp_path, qwen(one), tls=certificate(tmp_path)) as it,
        await secure(it) as client,
    ):
        await client.send(request(chat(stream=True), version="1.0"))
        got = await client.answer()
        assert got.whole
        assert got.body.endswith(b"[DONE]\n\n")


@in_loop
async def test_a_client_that_leaves_is_gone_at_the_engine_too(tmp_path: Path) -> None:
    async def endless(received: object, wire: object) -> None:
        await asyncio.sleep(3600)

    async with (
        engine(endless) as one,
        gateway(tmp_path, qwen(one), tls=certificate(tmp_path)) as it,
    ):
        client = await secure(it)
        await client.send(request(chat()))
        async with asyncio.timeout(30):
            while not one.received:  # noqa: ASYNC110 - any condition
                await asyncio.sleep(0.01)
            client.close()
            await one.received[0].closed.wait()


@in_loop
async def test_plain_http_gets_nothing(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, qwen(), tls=certificate(tmp_path)) as it,
        await connect(it) as client,
    ):
        await client.send(request(chat()))
        assert await client.at_end()


@in_loop
async def test_a_renewed_certificate_counts_for_new_connections(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, qwen(), tls=certificate(tmp_path)) as it,
        await secure(it) as old,
    ):
        put(tmp_path, "two")
        it.read_certificate()
        async with await secure(it, "two") as new:
            for client in (old, new):
                await client.send(request(method="GET", path="/v1/models"))
                assert (await client.answer()).status == 200


@in_loop
async def test_a_certificate_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen(), tls=certificate(tmp_path)) as it:
        shutil.copy(TLS / "two.pem", tmp_path / "cert.pem")
        it.read_certificate()
        async with await secure(it) as client:
            await client.send(request(method="GET", path="/v1/models"))
            assert (await client.answer()).status == 200
    (said,) = [e for e in log_of(tmp_path) if e["event"] == "gateway.certificate_refused"]
    assert "are no certificate and its key" in said["cause"]


def test_a_missing_file_or_a_wrong_pair_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"--tls-key .*none\.key: No such file"):
        Certificate(TLS / "one.pem", tmp_path / "none.key")
    with pytest.raises(Unusable, match="are no certificate and its key"):
        Certificate(TLS / "one.pem", TLS / "two.key")
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(Unusable, match="are no certificate and its key"):
        Certificate(tmp_path / "junk", TLS / "one.key")
