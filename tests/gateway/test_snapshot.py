"""Routes come from the server, stay on disk, and outlive it."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
import json
import random
import stat
from pathlib import Path

import msgspec
import pytest

from gateway.control import CREDENTIAL, serving
from gateway.twins import (
    ENGINE_KEY,
    KEY,
    answer,
    ask,
    chat,
    completion,
    engine,
    free_port,
    gateway,
    in_loop,
    log_of,
    qwen,
    request,
    snapshot,
    until,
)
from roost.formats.routing import RoutedModel, encode
from roost.gateway.accounts import Log
from roost.gateway.follower import Follower
from roost.gateway.limits import Limits
from roost.gateway.snapshot_file import read_snapshot, write_snapshot
from roost.gateway.table import RoutingTable


@in_loop
async def test_a_gateway_without_a_file_routes_by_what_the_server_says(tmp_path: Path) -> None:
    async with (
        engine(answer(completion())) as one,
        serving(tmp_path, snapshot(qwen(one))) as server,
        gateway(tmp_path, confirmed=False) as it,
    ):
        # At once: the first request waits for the first snapshot.
        assert (await ask(it, request(chat()))).status == 200
        path = tmp_path / "gateway" / "snapshot.json"
        await until(path.exists)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert read_snapshot(path) == server.now


@in_loop
async def test_what_changes_is_routed_by_soon(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, serving(tmp_path, snapshot()) as server:
        server.chunked = True
        async with gateway(tmp_path, confirmed=False) as it:
            assert (await ask(it, request(chat()))).status == 404
            server.says(snapshot(qwen(state="loading"), revision=2))
            await until(lambda: "qwen" in it.table.models)
            assert (await ask(it, request(chat()))).status == 503
            server.says(snapshot(qwen(one), revision=3))
            await until(lambda: bool(it.table.models["qwen"].endpoints))
            assert (await ask(it, request(chat()))).status == 200
            server.says(snapshot(revision=4))
            await until(lambda: not it.table.models)
            assert (await ask(it, request(chat()))).status == 404
            # It asks for what is newer than what it has, and waits for it.
            await until(lambda: server.asked[-1]["revision"] == "4")
            assert float(server.asked[-1]["wait"]) >= 10
            assert len(server.asked) < 12


@in_loop
async def test_a_gateway_that_starts_while_the_server_is_away_routes_by_its_file(
    tmp_path: Path,
) -> None:
    async with engine(answer(completion())) as one:
        away = f"http://127.0.0.1:{free_port()}"
        limits = Limits(first_snapshot_s=0.3, drain_s=0.2)
        async with gateway(tmp_path, qwen(one), server=away, confirmed=False, limits=limits) as it:
            assert (await ask(it, request(chat()))).status == 200
            assert (await ask(it, request(chat("nope")))).status == 404
            assert (await ask(it, request(chat(), key="roost-wrong"))).status == 401
            assert it.follower.snapshot_age is not None


@in_loop
async def test_a_gateway_that_has_never_heard_of_a_server_says_so(tmp_path: Path) -> None:
    limits = Limits(first_snapshot_s=0.2, drain_s=0.2)
    async with gateway(tmp_path, confirmed=False, limits=limits) as it:
        for _ in range(2):
            got = await ask(it, request(chat()))
            assert (got.status, got.json["error"]["code"]) == (503, "no_routes")
            assert int(got.headers["retry-after"]) >= 1
        listed = await ask(it, request(method="GET", path="/v1/models"))
        assert listed.status == 503
        assert (await ask(it, request(chat(), key=None))).status == 401


@in_loop
async def test_a_server_that_goes_and_comes_back_changes_nothing(tmp_path: Path) -> None:
    async with (
        engine(answer(completion())) as one,
        serving(tmp_path, snapshot(qwen(one))) as server,
        gateway(tmp_path, confirmed=False) as it,
    ):
        assert (await ask(it, request(chat()))).status == 200
        await server.stop()
        await until(lambda: "gateway.server_away" in (tmp_path / "log").read_text())
        for _ in range(3):
            assert (await ask(it, request(chat()))).status == 200
        server.now = snapshot(qwen(one), RoutedModel(name="new"), revision=2, epoch=2)
        await server.start()
        await until(lambda: "new" in it.table.models)
        await until(lambda: "gateway.server_back" in (tmp_path / "log").read_text())
    events = [line["event"] for line in log_of(tmp_path)]
    # Once for each cause in turn (broken off, then refused), not once for each attempt.
    assert 1 <= events.count("gateway.server_away") <= 2
    assert events.count("gateway.server_back") == 1


@in_loop
async def test_a_server_that_moves_is_found_by_its_file(tmp_path: Path) -> None:
    async with serving(tmp_path, snapshot()) as server, gateway(tmp_path, confirmed=False) as it:
        await until(lambda: it.table.version is not None)
        await server.stop()
        server.port = 0
        server.now = snapshot(RoutedModel(name="new"), revision=9)
        await server.start()
        (tmp_path / "server" / "endpoint.json").write_text(json.dumps({"api": server.url}))
        await until(lambda: "new" in it.table.models)


@in_loop
async def test_a_server_with_an_empty_database_does_not_empty_the_routes(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one:
        empty = snapshot(revision=1, fleet="f-2", incarnation=7, adopting=True, keys=())
        async with serving(tmp_path, empty) as server:
            async with gateway(tmp_path, qwen(one), confirmed=False) as it:
                await until(lambda: len(server.asked) >= 1)
                await until(it.table.confirmed.is_set)
                assert (await ask(it, request(chat()))).status == 200
                # Once a catalog is applied there, that is the truth.
                server.says(
                    snapshot(RoutedModel(name="new"), fleet="f-2", incarnation=7, revision=2)
                )
                await until(lambda: "new" in it.table.models)


@in_loop
async def test_an_older_snapshot_is_ignored_and_not_asked_for_without_pause(
    tmp_path: Path,
) -> None:
    async with engine(answer(completion())) as one:
        async with serving(tmp_path, snapshot(revision=3, epoch=1)) as server:
            file = snapshot(qwen(one), revision=2, epoch=2)
            async with gateway(tmp_path, first=file, confirmed=False) as it:
                await until(lambda: len(server.asked) >= 1)
                await asyncio.sleep(0.5)
                assert (await ask(it, request(chat()))).status == 200
                assert len(server.asked) <= 2
    said = [line["event"] for line in log_of(tmp_path)]
    assert said.count("gateway.snapshot_ignored") == 1
    assert "gateway.server_away" not in said
    assert "gateway.server_back" not in said


@in_loop
async def test_a_refused_credential_is_said_once_and_tried_again(tmp_path: Path) -> None:
    async with serving(tmp_path, snapshot(qwen())) as server:
        file = tmp_path / "server" / "gateway_credential"
        file.write_text("wrong")
        async with gateway(tmp_path, confirmed=False) as it:
            await until(lambda: len(server.asked) >= 2)
            file.write_text(CREDENTIAL)
            await until(lambda: it.table.version is not None)
    away = [line for line in log_of(tmp_path) if line["event"] == "gateway.server_away"]
    assert len(away) == 1
    assert "refuses the credential" in away[0]["cause"]
    assert "wrong" not in away[0]["cause"].replace(str(tmp_path), "")


@pytest.mark.parametrize(
    "written", [b"\xff\xfe\n", "schl\u00fcssel\n".encode(), b"", b"two words\n"]
)
def test_a_credential_file_that_is_none_is_said_and_read_again(
    tmp_path: Path, written: bytes
) -> None:
    @in_loop
    async def story() -> None:
        async with engine(answer(completion())) as one, serving(tmp_path, snapshot(qwen(one))):
            file = tmp_path / "server" / "gateway_credential"
            file.write_bytes(written)
            async with gateway(tmp_path, confirmed=False) as it:
                await until(lambda: "is not one line" in str(log_of(tmp_path)))
                file.write_text(CREDENTIAL + "\n")
                await until(lambda: it.table.version is not None)

    story()


@in_loop
async def test_an_address_that_is_none_is_said_and_read_again(tmp_path: Path) -> None:
    async with (
        engine(answer(completion())) as one,
        serving(tmp_path, snapshot(qwen(one))) as server,
    ):
        file = tmp_path / "server" / "endpoint.json"
        file.write_text(json.dumps({"api": "http://127.0.0.1:port"}))
        async with gateway(tmp_path, confirmed=False) as it:
            await until(lambda: "gateway.server_away" in str(log_of(tmp_path)))
            file.write_text(json.dumps({"api": server.url}))
            await until(lambda: it.table.version is not None)


@in_loop
async def test_an_answer_that_is_no_snapshot_leaves_the_routes_alone(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, serving(tmp_path) as server:
        server.status = 500
        server.now = snapshot(revision=9)
        async with gateway(tmp_path, qwen(one), confirmed=False) as it:
            await until(lambda: len(server.asked) >= 2)
            assert (await ask(it, request(chat()))).status == 200


@in_loop
async def test_replicas_that_stay_keep_their_connections_and_load(tmp_path: Path) -> None:
    async with engine(answer(completion())) as one, gateway(tmp_path, qwen(one)) as it:
        await ask(it, request(chat()))
        before = it.table.models["qwen"].endpoints[0]
        it.table.adopt(snapshot(qwen(one, slots=7), revision=2))
        after = it.table.models["qwen"].endpoints[0]
        assert after is before
        assert after.route.slots == 7
        await ask(it, request(chat()))
        assert one.connections == 1
        it.table.adopt(snapshot(qwen(), revision=3))
        await until(lambda: one.open == 0)


def test_a_file_that_is_no_snapshot_is_said_and_not_routed_by(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "gateway").mkdir()
        (tmp_path / "gateway" / "snapshot.json").write_text('{"fleet": 7}')
        async with gateway(tmp_path) as it:
            assert it.table.version is None

    asyncio.run(main())
    assert any(line["event"] == "gateway.snapshot_unusable" for line in log_of(tmp_path))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "gateway" / "snapshot.json"
    for revision in (1, 2):
        write_snapshot(path, snapshot(revision=revision))
    assert [entry.name for entry in path.parent.iterdir()] == ["snapshot.json"]
    found = read_snapshot(path)
    assert found is not None
    assert found.revision == 2
    assert read_snapshot(tmp_path / "nothing.json") is None


def test_a_snapshot_of_a_newer_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    more = msgspec.json.decode(encode(snapshot(qwen()))) | {"later": {"x": 1}}
    path.write_bytes(msgspec.json.encode(more))
    assert read_snapshot(path) == snapshot(qwen())


def test_secrets_are_not_shown_by_what_holds_them(tmp_path: Path) -> None:
    async def main() -> None:
        table = RoutingTable(Limits(), lambda: 0.0, random.Random(1))
        log = Log(2)
        follower = Follower(
            table=table,
            log=log,
            directory=tmp_path,
            server=None,
            credential_file=tmp_path / "credential",
            rng=random.Random(1),
        )
        assert CREDENTIAL not in repr(follower)
        log.close()

    asyncio.run(main())
    assert ENGINE_KEY not in repr(snapshot(qwen()))
    assert KEY not in repr(snapshot(qwen()))
