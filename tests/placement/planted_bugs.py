"""Bugs planted one at a time in a copy of Roost, each of which some property must catch.

Not collected with the tests, because each takes a test run of its own:

    pytest tests/placement/planted_bugs.py
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import roost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TESTS = Path(__file__).parent
PACKAGE = Path(roost.__file__).parent


class Plant(NamedTuple):
    """A small change of the source, and the test that is to fail by it."""

    bug: str
    file: str
    was: str
    becomes: str
    caught_by: str
    test_file: str = "test_properties.py"


NO_SHRINKING = """
from hypothesis import Phase, settings
settings.register_profile("no_shrinking", phases=[Phase.generate], database=None)
settings.load_profile("no_shrinking")
"""
"""A plugin: that it fails is enough, the smallest example of it takes minutes."""

PLANTS = [
    Plant(
        "a card with a foreign process is free",
        "rows.py",
        "if gpu.foreign_processes:",
        "if gpu.foreign_processes and False:",
        "test_placed_gpus_are_free",
    ),
    Plant(
        "an unhealthy card is free",
        "rows.py",
        "if gpu.healthy is False:",
        "if gpu.healthy is False and False:",
        "test_placed_gpus_are_free",
    ),
    Plant(
        "a card of an unknown health is not free",
        "rows.py",
        "if gpu.healthy is False:",
        "if not gpu.healthy:",
        "test_the_naive_twin",
    ),
    Plant(
        "what was placed holds no memory",
        "decide.py",
        "memory_bytes=profile.min_memory_bytes,",
        "memory_bytes=None,",
        "test_nothing_is_placed_where or test_the_naive_twin",
    ),
    Plant(
        "a replica that holds is placed once more",
        "plan.py",
        "found = held.get((model, number), []) + ",
        "found = ",
        "test_a_plan_carried_out",
    ),
    Plant(
        "a shard gets the adapters of all its fabrics",
        "view.py",
        "if attachment.name == fabric",
        "if fabric",
        "test_a_multi_node_replica",
    ),
    Plant(
        "the room on several local filesystems is added up",
        "rows.py",
        "return rooms[best], disks[best].total",
        "return sum(rooms), disks[best].total",
        "test_nothing_is_placed_where",
    ),
    Plant(
        "a cordoned node takes new work",
        "filters.py",
        "view.lasting.passing(need) & present[READY] & present[OPEN]",
        "view.lasting.passing(need) & present[READY]",
        "test_nothing_is_placed_where",
    ),
    Plant(
        "a node is charged to the last of its reasons",
        "filters.py",
        "for code, through in filters:",
        "for code, through in reversed(filters):",
        "test_every_node_fits_or_is_refused_once",
    ),
    Plant(
        "memory is not given back",
        "rows.py",
        "row.memory_left = self.memory_left + hold.memory_bytes",
        "row.memory_left = self.memory_left",
        "test_after_any_events",
        "test_core_index.py",
    ),
    Plant(
        "the first listed wins a tie, not the first by name",
        "index.py",
        "sorted(nodes, key=lambda node: node.name)",
        "list(nodes)",
        "test_the_order_of_nodes",
    ),
    Plant(
        "disk claims are charged in the order in which they are listed",
        "rows.py",
        "for claim in sorted((hold.disk_bytes for hold in holds if hold.disk_bytes), reverse=True):",
        "for claim in [hold.disk_bytes for hold in holds if hold.disk_bytes]:",
        "test_the_order_of_nodes",
    ),
    Plant(
        "a replica that is stopping counts as kept",
        "plan.py",
        "if hold.model is not None and hold.state is AllocationState.HELD:",
        "if hold.model is not None:",
        "test_the_order_is_kept_ones_first",
    ),
    Plant(
        "a fabric must have exactly as many nodes as asked",
        "groups.py",
        "if fabric.size >= need.nodes]",
        "if fabric.size == need.nodes]",
        "test_a_node_more_or_a_card_healed",
    ),
    Plant(
        "an untouched node is opened first",
        "ranking.py",
        "return among & view.present[PARTLY_USED] or among",
        "return among & ~view.present[PARTLY_USED] or among",
        "test_an_untouched_node",
    ),
    Plant(
        "the lowest free cards are taken whatever the NVLink domains",
        "nvlink.py",
        "if here.bit_count() < count:",
        "if here.bit_count() < count or True:",
        "test_a_group_is_in_one_known_nvlink_domain",
    ),
    Plant(
        "profiles are tried in ascending priority",
        "needs.py",
        "key=lambda profile: -profile.priority",
        "key=lambda profile: profile.priority",
        "test_a_lower_profile",
    ),
    Plant(
        "scarcity is left out of the rank",
        "ranking.py",
        "(may_be_one_domain, partly_used, fewest_left, least_wanted)",
        "(may_be_one_domain, partly_used, fewest_left)",
        "test_the_naive_twin",
    ),
    Plant(
        "the claims of lost replicas are forgotten",
        "rows.py",
        "return sum(hold.memory_bytes or 0 for hold in holds)",
        "return sum(hold.memory_bytes or 0 for hold in holds if hold.state != 'lost')",
        "test_the_naive_twin",
    ),
    Plant(
        "worst fit: the most free cards are left",
        "ranking.py",
        "slices.least(view.numbers[need.free_of_class], among)",
        "slices.most(view.numbers[need.free_of_class], among)",
        "test_the_naive_twin",
    ),
    Plant(
        "a domain that is not known is taken for none",
        "nvlink.py",
        "return known + (unknown & free).bit_count()",
        "return known",
        "test_the_naive_twin",
    ),
    Plant(
        "a group takes the fullest nodes of its fabric",
        "groups.py",
        "slices.most(view.numbers[need.free_of_class], among)",
        "slices.least(view.numbers[need.free_of_class], among)",
        "test_the_naive_twin",
    ),
    Plant(
        "what is not reported is taken for 0",
        "facets.py",
        "return everything if has is None else",
        "return 0 if has is None else",
        "test_the_naive_twin",
    ),
    Plant(
        "the smallest replica is decided first",
        "plan.py",
        "view.lasting.nodes_for(model), -largest",
        "view.lasting.nodes_for(model), largest",
        "test_the_naive_twin",
    ),
    Plant(
        "a CPU replica goes to nodes with cards as readily",
        "ranking.py",
        "(fewest_cpu_replicas, has_no_gpu, most_memory_left)",
        "(fewest_cpu_replicas, most_memory_left)",
        "test_the_naive_twin",
    ),
    Plant(
        "the fabric with the most nodes is taken",
        "groups.py",
        "key=lambda fabric: (fabric.size, fabric.fabric)",
        "key=lambda fabric: (-fabric.size, fabric.fabric)",
        "test_the_naive_twin",
    ),
    Plant(
        "a card of an unknown size is too small",
        "cards.py",
        "if memory is not None and memory < kind.least_memory:",
        "if (memory or 0) < kind.least_memory:",
        "test_the_naive_twin",
    ),
    Plant(
        "the index of a card is believed although its uuid is known",
        "rows.py",
        "held = gpu.uuid in uuids or (not knows_all and gpu.index in indices)",
        "held = gpu.index in indices",
        "test_the_naive_twin",
    ),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.bug)
def test_the_bug_is_caught(plant: Plant, tmp_path: Path) -> None:
    copy = tmp_path / "src" / "roost"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "dist"))
    file = copy / "placement" / plant.file
    source = file.read_text()
    assert source.count(plant.was) == 1, "the source has changed: plant it anew"
    file.write_text(source.replace(plant.was, plant.becomes))
    (copy.parent / "no_shrinking.py").write_text(NO_SHRINKING)
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(TESTS / plant.test_file)]
    command += ["-k", plant.caught_by, "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-p", "no_shrinking", "--rootdir", str(TESTS.parent.parent), "--hypothesis-seed=1"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert str(copy) in ran.stdout or "AssertionError" in ran.stdout, ran.stdout[-3000:]
