"""What Prometheus is told of nodes: each filesystem once, and nothing that isn't known."""

from prometheus_client.parser import text_string_to_metric_families

from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.domain.storage import Room, room_in_fleet, room_on_node
from roost.services.metrics import exposition

GB = 10**9


def local(
    name: str = "/dev/nvme0n1p2", free: int | None = 100, total: int | None = 468
) -> Filesystem:
    return Filesystem(
        filesystem=name,
        mounts=("/",),
        free_bytes=None if free is None else free * GB,
        total_bytes=None if total is None else total * GB,
    )


def filer(free: int | None = 4000, **more: object) -> Filesystem:
    return Filesystem(
        filesystem="nas:/models",
        mounts=("/mnt/a", "/mnt/b"),
        shared=True,
        free_bytes=None if free is None else free * GB,
        total_bytes=None if free is None else 10_000 * GB,
        **more,  # type: ignore[arg-type]  # by name
    )


def series(*nodes: Node) -> dict[tuple[str, ...], float]:
    text = exposition(lambda: nodes).decode()
    return {
        (sample.name, *(sample.labels[k] for k in ("node", "kind") if k in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def node(name: str, *storage: Filesystem, ready: bool = True) -> Node:
    facts = Facts(memory_bytes=64 * GB, storage=storage or None)
    return Node(name=NodeName(name), facts=facts, ready=ready)


def test_three_nodes_with_one_filer_have_one_filer() -> None:
    nodes = [node(f"n{i}", local(), filer()) for i in range(3)]
    found = series(*nodes)
    for one in nodes:
        assert found["roost_node_storage_total_bytes", one.name, "local"] == 468 * GB
        assert found["roost_node_storage_total_bytes", one.name, "shared"] == 10_000 * GB
    assert found["roost_fleet_storage_total_bytes", "local"] == 3 * 468 * GB
    assert found["roost_fleet_storage_total_bytes", "shared"] == 10_000 * GB
    assert found["roost_fleet_storage_free_bytes", "shared"] == 4000 * GB


def test_a_node_says_whether_it_is_ready() -> None:
    found = series(node("up"), node("down", ready=False))
    assert found["roost_node_ready", "up"] == 1
    assert found["roost_node_ready", "down"] == 0


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    found = series(Node(name=NodeName("old")))
    assert found == {("roost_node_ready", "old"): 1}
    found = series(node("half", local(free=None), filer(None)))
    assert ("roost_node_storage_free_bytes", "half", "local") not in found
    assert found["roost_node_storage_total_bytes", "half", "local"] == 468 * GB
    assert ("roost_node_storage_total_bytes", "half", "shared") not in found


def test_one_filesystem_of_unknown_size_leaves_a_nodes_sum_unknown() -> None:
    assert room_on_node([local(), local("/dev/b", None, None)], shared=False) == Room()
    assert room_on_node([local(), local("/dev/b", 1, 2)], shared=False) == Room(
        free_bytes=101 * GB, total_bytes=470 * GB
    )
    assert room_on_node(None, shared=False) == Room()


def test_two_local_filesystems_of_one_name_and_different_sizes_are_two() -> None:
    two = [local("tmpfs", 1, 2), local("tmpfs", 3, 4), local("tmpfs", 3, 4)]
    both = Room(free_bytes=4 * GB, total_bytes=6 * GB)
    assert room_on_node(two, shared=False) == both
    assert room_in_fleet([two], shared=False) == both


def test_the_fleet_believes_the_node_that_the_filer_answers() -> None:
    stale = filer(1, stale_since=5)
    read_only = filer(0, read_only=True)
    for order in ([stale, filer(), read_only], [read_only, stale, filer()]):
        room = room_in_fleet([[one] for one in order], shared=True)
        assert room == Room(free_bytes=4000 * GB, total_bytes=10_000 * GB)
    assert room_in_fleet([[filer(None)], None, []], shared=True) == Room()


def test_names_cannot_break_the_text() -> None:
    found = series(node('a"\n\\b', local()))
    assert found["roost_node_ready", 'a"\n\\b'] == 1
