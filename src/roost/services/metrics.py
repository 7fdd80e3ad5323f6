"""What Prometheus is told of the nodes; what is not known is absent."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from roost.domain.allocation import Allocation
from roost.domain.cards import states
from roost.domain.node import Node, NodeName
from roost.domain.storage import room_in_fleet, room_on_node
from roost.telemetry import names

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_KINDS: Final = (("local", False), ("shared", True))


class NodeCollector(Collector):
    """Reads the nodes when somebody asks."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[Node]],
        allocations: Callable[[], Sequence[Allocation]],
    ) -> None:
        self._nodes = nodes
        self._allocations = allocations

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
        yield _gpus(nodes, self._allocations())
        yield from _storage_of_nodes(nodes)
        yield from _storage_of_fleet(nodes)


def _gpus(nodes: Sequence[Node], allocations: Sequence[Allocation]) -> Metric:
    cards = GaugeMetricFamily(
        names.GPUS,
        "A node's cards by class and state: free, allocated, unhealthy, foreign, stopping.",
        labels=("node", "class", "state"),
    )
    on: dict[NodeName, list[Allocation]] = {}
    for held in allocations:
        on.setdefault(held.node, []).append(held)
    for node in nodes:
        for (kind, state), count in sorted(states(node, on.get(node.name, ())).items()):
            cards.add_metric((node.name, kind, state.value), count)
    return cards


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


def exposition(
    nodes: Callable[[], Sequence[Node]],
    allocations: Callable[[], Sequence[Allocation]] = tuple,
) -> bytes:
    """All series as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(nodes, allocations))
    return generate_latest(registry)
