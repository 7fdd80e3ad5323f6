"""The metrics port: /healthz, /readyz and /metrics, for whoever watches the gateway."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from roost.gateway.accounts import TTFT_BOUNDS
from roost.gateway.context import Context
from roost.gateway.heads import END, BadHead, parse_request
from roost.telemetry import names

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_TEXT: Final = b"text/plain; charset=utf-8"
_HEAD_S: Final = 5


class GatewayCollector(Collector):
    """Reads the gateway's own counts when somebody asks."""

    def __init__(
        self,
        context: Context,
        *,
        snapshot_age: Callable[[], float | None],
        connections: Callable[[], int],
    ) -> None:
        self._context = context
        self._snapshot_age = snapshot_age
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        context = self._context
        accounts, table = context.accounts, context.table
        requests = CounterMetricFamily(
            names.GATEWAY_REQUESTS.removesuffix("_total"),
            "Requests that are over; 499: the client left, 502: the engine broke off.",
            labels=("model", "code"),
        )
        for (name, code), count in accounts.requests.items():
            requests.add_metric((name, str(code)), count)
        yield requests
        ttft = HistogramMetricFamily(
            names.GATEWAY_TTFT,
            "Seconds from a request's head to the first byte of its answer's body.",
            labels=("model",),
        )
        for name, histogram in accounts.ttft.items():
            buckets, seen = [], 0
            for bound, count in zip((*TTFT_BOUNDS, "+Inf"), histogram.counts, strict=True):
                seen += count
                buckets.append((str(bound), float(seen)))
            ttft.add_metric((name,), buckets, histogram.total)
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
        for model in table.models.values():
            depth.add_metric((model.name,), len(model.queue))
            in_flight.add_metric((model.name,), sum(e.in_flight for e in model.endpoints))
            ejected.add_metric(
                (model.name,), sum(e.health.until is not None for e in model.endpoints)
            )
        yield depth
        yield in_flight
        yield ejected
        yield GaugeMetricFamily(
            names.GATEWAY_CONNECTIONS, "Clients' connections.", value=self._connections()
        )
        yield CounterMetricFamily(
            names.GATEWAY_LOG_DROPPED.removesuffix("_total"),
            "Log lines dropped because nobody read them.",
            value=accounts.log.dropped,
        )
        if table.version is not None:
            yield GaugeMetricFamily(
                names.GATEWAY_SNAPSHOT_REVISION,
                "Revision of the snapshot routed by.",
                value=table.version.revision,
            )
        age = self._snapshot_age()
        if age is not None:
            yield GaugeMetricFamily(
                names.GATEWAY_SNAPSHOT_AGE,
                "Seconds since the server last said what is true.",
                value=age,
            )


class Monitor:
    """A small HTTP server; it knows three paths and takes one request a connection."""

    def __init__(self, context: Context, collector: GatewayCollector) -> None:
        self._context = context
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_server(self._answer, host, port, limit=64 * 1024)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = parse_request(await reader.readuntil(END), most_headers=100)
                status, content_type, body = self._page(head.method, head.path)
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

    def _page(self, method: bytes, path: bytes) -> tuple[bytes, bytes, bytes]:
        if method not in (b"GET", b"HEAD"):
            return b"405 Method Not Allowed", _TEXT, b"GET is all there is\n"
        if path == b"/healthz":
            return b"200 OK", _TEXT, b"ok\n"
        if path == b"/readyz":
            why_not = self._why_not_ready()
            status = b"503 Service Unavailable" if why_not else b"200 OK"
            return status, _TEXT, why_not or b"ok\n"
        if path == b"/metrics":
            return b"200 OK", CONTENT_TYPE, generate_latest(self._registry)
        return b"404 Not Found", _TEXT, b"there are /healthz, /readyz and /metrics\n"

    def _why_not_ready(self) -> bytes | None:
        if self._context.draining:
            return b"stopping\n"
        return b"no routes yet\n" if self._context.table.version is None else None
