"""Ask an engine how it is and how busy it is, over HTTP, bounded in time and size."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from roost.domain.profile import MetricNames
from roost.domain.replica import Load, ShardSpec
from roost.engines.adapter import Adapter
from roost.engines.load_names import missing
from roost.reconcile.engine_life import Health

HEALTH_TIMEOUT_S: Final = 5.0
SCRAPE_TIMEOUT_S: Final = 5.0
"""Of the whole exchange: an engine that sends a byte now and then is silent too."""
MAX_BODY_BYTES: Final = 4_000_000
MOST_SERIES: Final = 1_000
LONGEST_SERIES: Final = 2_000
"""Characters. The parser's time grows with the square of a line's length."""

# A kept connection would occupy one of llama.cpp's threads, and make its SIGTERM hang.
_CLOSE: Final = {"Connection": "close", "Accept-Encoding": "identity"}


def client() -> httpx2.AsyncClient:
    """For probes of engines: no proxy, no kept connection, no redirect."""
    return httpx2.AsyncClient(
        trust_env=False,
        headers=_CLOSE,
        limits=httpx2.Limits(max_keepalive_connections=0, max_connections=256),
        follow_redirects=False,
    )


async def health(http: httpx2.AsyncClient, adapter: Adapter, spec: ShardSpec) -> Health:
    """What the engine says of itself, or what its silence means."""
    path = adapter.health_path(spec)
    if path is None:
        # Whoever asks has seen the process live.
        return Health.READY
    url = f"{_base(spec)}{path}"
    try:
        status, body = await _get(http, url, spec, within_s=HEALTH_TIMEOUT_S)
    except httpx2.ConnectError:
        return Health.REFUSED
    except httpx2.TimeoutException:
        return Health.SILENT
    except httpx2.HTTPError:
        return Health.BROKEN
    return adapter.health(status, body)


async def slots(http: httpx2.AsyncClient, adapter: Adapter, spec: ShardSpec) -> int | None:
    """Requests at once, as the engine says; `None`: it doesn't."""
    if adapter.slots_path is None:
        return None
    try:
        url = f"{_base(spec)}{adapter.slots_path}"
        status, body = await _get(http, url, spec, within_s=SCRAPE_TIMEOUT_S)
    except httpx2.HTTPError:
        return None
    return adapter.slots(body) if status == 200 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What an engine's metrics page said, or that there is none."""

    load: Load | None
    """`None`: not measured."""
    missing: tuple[str, ...]
    """Series that are looked for and aren't there."""
    some: bool
    """Others of those that are looked for are."""


async def scrape(http: httpx2.AsyncClient, adapter: Adapter, spec: ShardSpec) -> Scrape | None:
    """How busy it says it is; `None`: nobody asks it, or it gave no answer."""
    names = adapter.metrics(spec)
    if names is None:
        return None
    try:
        url = f"{_base(spec)}{names.path}"
        status, body = await _get(http, url, spec, within_s=SCRAPE_TIMEOUT_S)
    except httpx2.HTTPError:
        return None
    page = body.decode(errors="replace") if status == 200 else ""
    there = {_name_of(line) for line in page.split("\n")}
    return Scrape(
        load=parse_load(page, names),
        missing=missing(names, there, optional=adapter.optional_metrics),
        some=not there.isdisjoint({*names.running, *names.waiting, *names.kv_usage}),
    )


def parse_load(page: str, names: MetricNames) -> Load | None:
    """The three numbers out of a metrics page; a series that is absent or no number is not
    measured.
    """
    wanted = {*names.running, *names.waiting, *names.kv_usage}
    # Most of vLLM's page is histograms that nobody here reads.
    lines = [line for line in page.split("\n") if _name_of(line) in wanted]
    if len(lines) > MOST_SERIES or any(len(line) > LONGEST_SERIES for line in lines):
        return None  # a sum of some of them would be a wrong number
    values: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if math.isfinite(sample.value) and sample.value >= 0:
                    values.setdefault(sample.name, []).append(sample.value)
    except ValueError:
        return None
    running = _first(values, names.running)
    waiting = _first(values, names.waiting)
    usage = _first(values, names.kv_usage)
    if running is None and waiting is None and usage is None:
        return None
    return Load(
        running=None if running is None else sum(running),
        waiting=None if waiting is None else sum(waiting),
        kv_usage=None if usage is None else max(usage),
    )


def _first(values: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float] | None:
    return next((values[name] for name in names if name in values), None)


def _name_of(line: str) -> str:
    return line.split("{", 1)[0].split(" ", 1)[0].strip()


def _base(spec: ShardSpec) -> str:
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    return f"http://{host}:{spec.port}"


async def _get(
    http: httpx2.AsyncClient, url: str, spec: ShardSpec, *, within_s: float
) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {spec.key}"} if spec.key else {}
    body = bytearray()
    try:
        async with (
            asyncio.timeout(within_s),
            http.stream("GET", url, headers=headers, timeout=within_s) as answer,
        ):
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise httpx2.DecodingError("the answer is too large")
            return answer.status_code, bytes(body)
    except TimeoutError:
        raise httpx2.ReadTimeout(f"no whole answer within {within_s:g} s") from None
