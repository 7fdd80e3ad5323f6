"""The metrics port: /healthz, /readyz and /metrics, for whoever watches the gateway."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from roost.gateway.accounts import TTFT_BOUNDS
from roost.gateway.counts import Counts
from roost.gateway.heads import END, BadHead, parse_request
from roost.reconcile.routing import Version
from roost.telemetry import names

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_TEXT: Final = b"text/plain; charset=utf-8"
_HEAD_S: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the metrics port tells of the whole gateway."""

    counts: Counts
    version: Version | None
    """`None`: no routes yet."""
    snapshot_age: float | None
    """Seconds; `None`: the server has not been heard of."""
    workers: int
    """Those that serve."""


class Watched(Protocol):
    """A gateway as the metrics port sees it."""

    async def state(self) -> State:
        """What there is to tell now."""

    def why_not_healthy(self) -> str | None:
        """`None`: it serves."""

    def why_not_ready(self) -> str | None:
        """`None`: clients may be sent here."""


class GatewayCollector(Collector):
    """Makes metrics of one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        state, counts = self._state, self._state.counts
        requests = CounterMetricFamily(
            names.GATEWAY_REQUESTS.removesuffix("_total"),
            "Requests that are over; 499: the client left, 502: the engine broke off.",
            labels=("model", "code"),
        )
        for (name, code), count in counts.requests.items():
            requests.add_metric((name, str(code)), count)
        yield requests
        ttft = HistogramMetricFamily(
            names.GATEWAY_TTFT,
            "Seconds from a request's head to the first byte of its answer's body.",
            labels=("model",),
        )
        for name, times in counts.ttft.items():
            buckets, seen = [], 0
            for bound, count in zip((*TTFT_BOUNDS, "+Inf"), times.counts, strict=True):
                seen += count
                buckets.append((str(bound), float(seen)))
            ttft.add_metric((name,), buckets, times.total)
        yield ttft
        depth = GaugeMetricFamily(
            names.GATEWAY_QUEUE_DEPTH,
            "Requests that wait for a replica with room.",
            labels=("model",),
        )
        in_flight = GaugeMetricFamily(
            names.GATEWAY_IN_FLIGHT, "Requests on replicas.", labels=("model",)
        )
        ejected = GaugeMetricFamily(
            names.GATEWAY_EJECTED,
            "Replicas left alone for a while after their connections failed.",
            labels=("model",),
        )
        for name, model in counts.models.items():
            depth.add_metric((name,), model.waiting)
            in_flight.add_metric((name,), model.in_flight)
            ejected.add_metric((name,), len(model.ejected))
        yield depth
        yield in_flight
        yield ejected
        yield GaugeMetricFamily(
            names.GATEWAY_CONNECTIONS, "Clients' connections.", value=counts.connections
        )
        yield CounterMetricFamily(
            names.GATEWAY_LOG_DROPPED.removesuffix("_total"),
            "Log lines dropped because nobody read them.",
            value=counts.log_dropped,
        )
        yield GaugeMetricFamily(
            names.GATEWAY_WORKERS, "Worker processes that take connections.", value=state.workers
        )
        if state.version is not None:
            yield GaugeMetricFamily(
                names.GATEWAY_SNAPSHOT_REVISION,
                "Revision of the snapshot routed by.",
                value=state.version.revision,
            )
        if state.snapshot_age is not None:
            yield GaugeMetricFamily(
                names.GATEWAY_SNAPSHOT_AGE,
                "Seconds since the server last said what is true.",
                value=state.snapshot_age,
            )


class Monitor:
    """A small HTTP server; it knows three paths and takes one request a connection."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_server(self._answer, host, port, limit=64 * 1024)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = parse_request(await reader.readuntil(END), most_headers=100)
                status, content_type, body = await self._page(head.method, head.path)
                writer.write(
                    b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
                    b"connection: close\r\n\r\n%b"
                    % (status, content_type, len(body), b"" if head.method == b"HEAD" else body)
                )
                await writer.drain()
        except (TimeoutError, OSError, BadHead, EOFError, asyncio.LimitOverrunError):
            # Whoever asks so gets no answer; there is nobody to tell.
            pass
        finally:
            writer.close()

    async def _page(self, method: bytes, path: bytes) -> tuple[bytes, bytes, bytes]:
        if method not in (b"GET", b"HEAD"):
            return b"405 Method Not Allowed", _TEXT, b"GET is all there is\n"
        if path in (b"/healthz", b"/readyz"):
            watched = self._watched
            why_not = watched.why_not_healthy() if path == b"/healthz" else watched.why_not_ready()
            status = b"503 Service Unavailable" if why_not else b"200 OK"
            return status, _TEXT, (why_not or "ok").encode() + b"\n"
        if path == b"/metrics":
            registry = CollectorRegistry()
            registry.register(GatewayCollector(await self._watched.state()))
            return b"200 OK", CONTENT_TYPE, generate_latest(registry)
        return b"404 Not Found", _TEXT, b"there are /healthz, /readyz and /metrics\n"
