"""Known faults of inventories, from a machine's files to what may be placed on it."""

from dataclasses import replace
from pathlib import Path

import pytest

from roost.agent.facts.host import Reader
from roost.domain.fleet import Fleet
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.node import Facts, Node, NodeName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.storage import Room, room_in_fleet
from roost.placement import plan
from roost.placement.decision import Outcome

GIB, GB = 1 << 30, 10**9


def machine(root: Path, *, total: int, limit: str, cached: int) -> Node:
    """A machine whose agent is in a container with its own part of the hierarchy."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {total // 1024} kB\nMemFree: {(total - cached) // 1024} kB\n"
        f"Cached: {cached // 1024} kB\n"
    )
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "proc/self/mountinfo").write_text(
        "1 0 0:9 / / rw - overlay overlay rw\n2 1 0:26 /c /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    )
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    found = Reader(root, []).read()
    assert found.problems == ()
    return Node(name=NodeName("n"), facts=Facts(memory_bytes=found.memory_bytes))


def placed(node: Node, needs: int) -> tuple[Outcome, str]:
    profile = Profile(
        name=ProfileName("cpu"), engine=Engine.LLAMA_CPP, source="m", min_memory_bytes=needs * GB
    )
    model = Model(name=ModelName("m"), profiles=(profile,))
    (decision,) = plan(Catalog(models=(model,)), Fleet(nodes=(node,)))
    reasons = [
        f"{reason.has} {reason.needs}"
        for tried in decision.tried
        for rejected in tried.rejected
        for reason in rejected.reasons
    ]
    return decision.outcome, "; ".join(reasons)


def test_a_containers_limit_is_the_nodes_memory(tmp_path: Path) -> None:
    node = machine(tmp_path, total=512 * GIB, limit=str(40 * GIB), cached=0)
    assert node.facts.memory_bytes == 40 * GIB
    outcome, why = placed(node, 64)
    assert outcome is Outcome.UNPLACEABLE
    assert why == f"{40 * GIB} {64 * GB}"


def test_page_cache_takes_nothing_away(tmp_path: Path) -> None:
    node = machine(tmp_path, total=32 * GIB, limit="max", cached=28 * GIB)
    assert node.facts.memory_bytes == 32 * GIB
    assert placed(node, 24)[0] is Outcome.PLACED


def test_a_fleet_has_what_its_machines_have_and_each_filer_once(tmp_path: Path) -> None:
    """B007: four mounts of one disk, one share mounted twice, on three machines."""
    table = (
        "1 0 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n"
        "2 1 259:2 /opt /opt rw - ext4 /dev/nvme0n1p2 rw\n"
        "3 1 259:2 /etc/hosts /etc/hosts rw - ext4 /dev/nvme0n1p2 rw\n"
        "4 1 259:2 /data /data/models rw - ext4 /dev/nvme0n1p2 rw\n"
        "5 1 0:50 / /mnt/a rw - nfs4 nas:/models rw\n"
        "6 1 0:51 / /mnt/b rw - nfs4 nas:/models rw\n"
    )
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(table)
    directories = [Path(one) for one in ("/srv", "/opt", "/data/models", "/mnt/a", "/mnt/b")]
    storage = Reader(tmp_path, directories).read().storage
    assert storage is not None
    assert [(one.filesystem, one.shared, one.mounts) for one in storage] == [
        ("/dev/nvme0n1p2", False, ("/", "/data/models", "/opt")),
        ("nas:/models", True, ("/mnt/a", "/mnt/b")),
    ]
    disk, filer = storage
    told = [
        (
            replace(disk, free_bytes=100 * GB, total_bytes=468 * GB),
            replace(filer, free_bytes=1, total_bytes=10_000 * GB),
        )
    ] * 3
    assert room_in_fleet(told, shared=False) == Room(free_bytes=300 * GB, total_bytes=3 * 468 * GB)
    assert room_in_fleet(told, shared=True) == Room(free_bytes=1, total_bytes=10_000 * GB)


@pytest.mark.parametrize("limit", ["0", "4096"])
def test_a_limit_that_leaves_next_to_nothing_is_believed(tmp_path: Path, limit: str) -> None:
    node = machine(tmp_path, total=32 * GIB, limit=limit, cached=0)
    assert node.facts.memory_bytes == int(limit)
    assert placed(node, 1)[0] is Outcome.UNPLACEABLE
