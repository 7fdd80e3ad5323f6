"""What Prometheus is told of the nodes; what is not known is absent."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from roost.domain.node import Node
from roost.domain.storage import room_in_fleet, room_on_node
from roost.telemetry import names

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_KINDS: Final = (("local", False), ("shared", True))


class NodeCollector(Collector):
    """Reads the nodes when somebody asks."""

    def __init__(self, nodes: Callable[[], Sequence[Node]]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        nodes = self._nodes()
        ready = GaugeMetricFamily(
            names.NODE_READY, "Whether the node reports: 1 or 0.", labels=("node",)
        )
        memory = GaugeMetricFamily(
            names.NODE_MEMORY, "Main memory that engines may use.", labels=("node",)
        )
        for node in nodes:
            ready.add_metric((node.name,), float(node.ready))
            if node.facts.memory_bytes is not None:
                memory.add_metric((node.name,), node.facts.memory_bytes)
        yield ready
        yield memory
        yield from _storage_of_nodes(nodes)
        yield from _storage_of_fleet(nodes)


def _storage_of_nodes(nodes: Sequence[Node]) -> Iterator[Metric]:
    free = GaugeMetricFamily(
        names.NODE_STORAGE_FREE,
        "Free on the filesystems behind a node's model directories, each once.",
        labels=("node", "kind"),
    )
    total = GaugeMetricFamily(
        names.NODE_STORAGE_TOTAL,
        "Size of the filesystems behind a node's model directories, each once.",
        labels=("node", "kind"),
    )
    for node in nodes:
        for kind, shared in _KINDS:
            room = room_on_node(node.facts.storage, shared=shared)
            if room.free_bytes is not None:
                free.add_metric((node.name, kind), room.free_bytes)
            if room.total_bytes is not None:
                total.add_metric((node.name, kind), room.total_bytes)
    yield free
    yield total


def _storage_of_fleet(nodes: Sequence[Node]) -> Iterator[Metric]:
    free = GaugeMetricFamily(
        names.FLEET_STORAGE_FREE,
        "Free on all filesystems that nodes report; one that many nodes share counts once.",
        labels=("kind",),
    )
    total = GaugeMetricFamily(
        names.FLEET_STORAGE_TOTAL,
        "Size of all filesystems that nodes report; one that many nodes share counts once.",
        labels=("kind",),
    )
    for kind, shared in _KINDS:
        room = room_in_fleet((node.facts.storage for node in nodes), shared=shared)
        if room.free_bytes is not None:
            free.add_metric((kind,), room.free_bytes)
        if room.total_bytes is not None:
            total.add_metric((kind,), room.total_bytes)
    yield free
    yield total


def exposition(nodes: Callable[[], Sequence[Node]]) -> bytes:
    """All series as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(nodes))
    return generate_latest(registry)
