"""What a gateway has counted never falls, whatever becomes of models and replicas (B039)."""

# ruff: noqa: SIM117 - a client inside a gateway inside an engine reads better nested
import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.twins import (
    answer,
    ask,
    chat,
    completion,
    counted,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
    snapshot,
    until,
)
from roost.formats.routing import RoutedModel
from roost.gateway.service import Gateway

Series = tuple[str, tuple[tuple[str, str], ...]]


async def series(it: Gateway) -> dict[Series, float]:
    """Every series of the metrics page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    page = (await reader.read(-1)).decode().partition("\r\n\r\n")[2]
    writer.close()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def totals(found: dict[Series, float]) -> dict[Series, float]:
    ends = ("_total", "_count", "_sum", "_bucket")
    return {key: value for key, value in found.items() if key[0].endswith(ends)}


def requests(found: dict[Series, float], model: str, code: str = "200") -> float | None:
    return found.get(("roost_gateway_requests_total", (("code", code), ("model", model))))


def never_fell(before: dict[Series, float], after: dict[Series, float]) -> bool:
    then, now = totals(before), totals(after)
    return all(now.get(key, -1.0) >= value for key, value in then.items())


@in_loop
async def test_a_models_totals_outlive_its_replicas_and_itself(tmp_path: Path) -> None:
    """B039: deleted, asked for in vain, and back again."""
    async with engine(answer(completion())) as one, engine(answer(completion())) as two:
        async with gateway(tmp_path, qwen(one, two)) as it:
            for _ in range(10):
                await ask(it, request(chat()))
            first = await series(it)
            assert requests(first, "qwen") == 10
            it.table.adopt(snapshot(qwen(two), revision=2))
            await ask(it, request(chat()))
            less = await series(it)
            assert requests(less, "qwen") == 11
            it.table.adopt(snapshot(revision=3))
            assert (await ask(it, request(chat()))).status == 404
            gone = await series(it)
            assert requests(gone, "qwen") == 11
            # What it holds is gone with it.
            depth = ("roost_gateway_queue_depth", (("model", "qwen"),))
            assert depth in less
            assert depth not in gone
            it.table.adopt(snapshot(qwen(one), revision=4))
            await ask(it, request(chat()))
            back = await series(it)
            assert requests(back, "qwen") == 12
            assert never_fell(first, less)
            assert never_fell(less, gone)
            assert never_fell(gone, back)
            values = [value for found in (first, less, gone, back) for value in found.values()]
            assert all(0 <= value < float("inf") for value in values)


@in_loop
async def test_a_request_that_outlives_its_model_is_counted_under_its_name(tmp_path: Path) -> None:
    """B039."""
    go = asyncio.Event()

    async def late(received: object, wire: object) -> None:
        await go.wait()
        await answer(completion())(received, wire)  # type: ignore[arg-type]

    async with engine(late) as one, gateway(tmp_path, qwen(one)) as it:
        asked = asyncio.ensure_future(ask(it, request(chat())))
        await until(lambda: len(one.received) == 1)
        it.table.adopt(snapshot(RoutedModel(name="other", replicas=1), revision=2))
        go.set()
        assert (await asked).status == 200
        await until(lambda: bool(counted(it)))
        assert requests(await series(it), "qwen") == 1
