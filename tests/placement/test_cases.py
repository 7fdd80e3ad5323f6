"""Cases that somebody thought of: every row and message of the table of reasons, and known faults."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import captured_fleets
from roost.domain.allocation import AllocationState
from roost.domain.fleet import Fleet
from roost.domain.gpu import GpuClass
from roost.domain.model import Catalog, Model, ModelName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.reasons import Reason
from roost.domain.units import GB
from roost.formats.catalog import parse_catalog
from roost.formats.decision import decisions_to_json
from roost.formats.fleet import parse_fleet
from roost.placement import plan
from roost.placement.decision import Decision, Outcome
from roost.testing.naive_placement import naive_plan

H100 = "h100-80gb-hbm3"


def fleet_of(nodes: str, allocations: str = "[]") -> Fleet:
    return parse_fleet(f"nodes: {nodes}\nallocations: {allocations}", filename="f").fleet


def model(name: str, *profiles: str, replicas: int = 1, priority: int = 0) -> str:
    listed = ", ".join(
        f"{{name: p{at}, engine: vllm, source: s, {profile}}}"
        for at, profile in enumerate(profiles)
    )
    return f"- {{name: {name}, replicas: {replicas}, priority: {priority}, profiles: [{listed}]}}\n"


def catalog_of(*models: str) -> Catalog:
    return parse_catalog("models:\n" + "".join(models), filename="c", rules=lambda _profile: ())


def decide(fleet: Fleet, *models: str) -> tuple[Decision, ...]:
    return plan(catalog_of(*models), fleet)


def gpus(count: int, gpu_class: str = H100, **more: object) -> str:
    extra = "".join(f", {key}: {json.dumps(value)}" for key, value in more.items())
    return ", ".join(f"{{index: {at}, class: {gpu_class}{extra}}}" for at in range(count))


def where(decision: Decision) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(shard.node), shard.gpus) for shard in decision.shards]


def reasons(decision: Decision, node: str) -> tuple[Reason, ...]:
    (rejection,) = [one for one in decision.tried[-1].rejected if one.node == node]
    return rejection.reasons


def messages(decision: Decision, node: str) -> list[str]:
    return [reason.message for reason in reasons(decision, node)]


ON_2 = f"gpu_class: {H100}, gpus_per_node: 2"
ON_2_NODES = f"gpu_class: {H100}, nodes: 2"

# A node, what is held on it, what is asked, and the one reason against it.
TABLE: list[tuple[str, str, str, tuple[str, int | None, int | None, str | None, str]]] = [
    ("ready: false", "", "", ("not_ready", None, None, None, "is not ready")),
    (
        'ready: false, not_ready_since: "12:03:10"',
        "",
        "",
        ("not_ready", None, None, None, "is not ready since 12:03:10"),
    ),
    ("cordoned: true", "", "", ("cordoned", None, None, None, "is cordoned")),
    (
        "cordoned: true, cordon_reason: fan failure",
        "",
        "",
        ("cordoned", None, None, None, "is cordoned: fan failure"),
    ),
    (
        "draining: true",
        "",
        "",
        ("cordoned", None, None, None, "is cordoned and draining"),
    ),
    (
        "labels: {}",
        "",
        "node_selector: {ram: 32g}",
        ("label_mismatch", None, None, None, "does not carry ram=32g"),
    ),
    (
        "labels: {ram: 16g}",
        "",
        "node_selector: {ram: 32g}",
        ("label_mismatch", None, None, None, "carries ram=16g, needs ram=32g"),
    ),
    (
        "labels: {ram: 16g, zone: a}",
        "",
        "node_selector: {zone: a, ram: 32g, pool: x}",
        (
            "label_mismatch",
            None,
            None,
            None,
            "does not carry pool=x; carries ram=16g, needs ram=32g",
        ),
    ),
    (
        "engines: [llama.cpp]",
        "",
        "",
        ("engine_absent", None, None, None, "does not have vllm installed"),
    ),
    ("engines: []", "", "", ("engine_absent", None, None, None, "does not have vllm installed")),
    (
        "memory_bytes: 8000000000",
        "",
        "min_memory_gb: 24",
        ("memory_short", 8 * GB, 24 * GB, "bytes", "has 8 GB of memory, needs 24"),
    ),
    (
        "memory_bytes: 32000000000",
        "{replica: coder-0, node: n, memory_bytes: 24000000000}",
        "min_memory_gb: 24",
        (
            "memory_short",
            8 * GB,
            24 * GB,
            "bytes",
            "has 32 GB of memory, 24 held by coder-0, needs 24",
        ),
    ),
    (
        "memory_bytes: 23960000000",
        "",
        "min_memory_gb: 24",
        ("memory_short", 23_960_000_000, 24 * GB, "bytes", "has 23.9 GB of memory, needs 24"),
    ),
    (
        "storage: [{filesystem: a, free_bytes: 24000000000, total_bytes: 100000000000}]",
        "",
        "min_disk_gb: 40",
        (
            "disk_short",
            24 * GB,
            40 * GB,
            "bytes",
            "has 24 GB free of 100 GB on local disk, needs 40",
        ),
    ),
    (
        "storage: [{filesystem: a, free_bytes: 24000000000}, {filesystem: b, free_bytes: 20000000000}]",
        "",
        "min_disk_gb: 40",
        ("disk_short", 24 * GB, 40 * GB, "bytes", "has 24 GB free on local disk, needs 40"),
    ),
    (
        (
            "storage: [{filesystem: a, free_bytes: 1000000000, total_bytes: 100000000000},"
            " {filesystem: nfs, shared: true, free_bytes: 900000000000}]"
        ),
        "",
        "min_disk_gb: 40",
        ("disk_short", GB, 40 * GB, "bytes", "has 1 GB free of 100 GB on local disk, needs 40"),
    ),
    (
        "storage: [{filesystem: a, free_bytes: 60000000000, total_bytes: 100000000000}]",
        "{replica: coder-0, node: n, disk_bytes: 40000000000}",
        "min_disk_gb: 40",
        (
            "disk_short",
            20 * GB,
            40 * GB,
            "bytes",
            "has 20 GB free of 100 GB on local disk, needs 40",
        ),
    ),
    ("gpus: null", "", ON_2, ("gpus_unknown", None, None, None, "does not report its GPUs")),
    ("gpus: []", "", ON_2, ("gpu_class_absent", 0, 2, "gpus", f"has no {H100}, needs 2")),
    (
        f"gpus: [{gpus(1)}, {{index: 1, class: h100-80gb-hbm3-nvl}}]",
        "",
        ON_2,
        ("gpu_class_absent", 1, 2, "gpus", f"has 1 {H100}, needs 2"),
    ),
    (
        f"gpus: [{gpus(1, healthy=False)}]",
        "",
        ON_2,
        ("gpu_class_absent", 1, 2, "gpus", f"has 1 {H100}, needs 2"),
    ),
    (
        f"gpus: [{', '.join(f'{{index: {i}, class: rtx-4090, memory_bytes: {(80 if i < 4 else 24) * GB}}}' for i in range(8))}]",
        "",
        "gpu_class: rtx-4090, gpus_per_node: 8, min_gpu_memory_gb: 70",
        (
            "gpu_memory_short",
            4,
            8,
            "gpus",
            "has 4 rtx-4090 with 70 GB or more of 8, needs 8",
        ),
    ),
    (
        (
            f"gpus: [{gpus(2)}, {{index: 2, class: {H100}, healthy: false, unhealthy_reason: 3 uncorrectable ECC errors}},"
            f" {{index: 3, class: {H100}}}, {{index: 4, class: {H100}, foreign_processes: 1}}]"
        ),
        "{replica: m-0, node: n, gpus: [0]}, {replica: m-1, node: n, gpus: [1]}",
        ON_2,
        (
            "gpus_short",
            1,
            2,
            "gpus",
            (
                f"has 1 free of 5 {H100} (2 allocated to m-0, m-1; 1 unhealthy: 3 uncorrectable ECC"
                " errors; 1 held by another process), needs 2"
            ),
        ),
    ),
    (
        f"gpus: [{gpus(2)}], fabrics: []",
        "",
        ON_2_NODES,
        ("no_fabric", None, None, None, "is on no fabric"),
    ),
    (
        f"gpus: [{gpus(2)}], fabrics: [{{name: ib0, hcas: []}}]",
        "",
        ON_2_NODES,
        ("no_fabric", None, None, None, "is on no fabric"),
    ),
    (
        f"gpus: [{gpus(2)}], fabrics: null",
        "",
        ON_2_NODES,
        ("no_fabric", None, None, None, "does not report fabrics"),
    ),
    (
        f"gpus: [{gpus(2)}], fabrics: [{{name: ib0, hcas: [mlx5_0]}}]",
        "",
        ON_2_NODES,
        ("fabric_short", 1, 2, "nodes", "ib0 has 1 node that fits, needs 2"),
    ),
]


@pytest.mark.parametrize(("node", "held", "asked", "told"), TABLE)
def test_every_row_of_the_table_has_its_numbers_and_its_sentence(
    node: str, held: str, asked: str, told: tuple[str, int | None, int | None, str | None, str]
) -> None:
    fleet = fleet_of(f"[{{name: n, {node}}}]", f"[{held}]")
    (decision,) = decide(fleet, model("m", asked or "args: []"))
    assert decision.outcome is Outcome.UNPLACEABLE
    (reason,) = reasons(decision, "n")
    unit = None if reason.unit is None else reason.unit.value
    assert (reason.code.value, reason.has, reason.needs, unit, reason.message) == told
    assert {code.value: n for code, n in decision.tried[0].counts.items()} == {told[0]: 1}


UNKNOWN = [
    ("memory_bytes: null", "min_memory_gb: 24"),
    ("engines: null", ""),
    ("storage: null", "min_disk_gb: 40"),
    ("storage: []", "min_disk_gb: 40"),
    ("storage: [{filesystem: nfs, shared: true, free_bytes: 1}]", "min_disk_gb: 40"),
    ("storage: [{filesystem: a, free_bytes: null}]", "min_disk_gb: 40"),
    ("storage: [{filesystem: a, free_bytes: 1}, {filesystem: b}]", "min_disk_gb: 40"),
    (f"gpus: [{gpus(2, healthy=None)}]", ON_2),
    (f"gpus: [{gpus(2, foreign_processes=None)}]", ON_2),
    (f"gpus: [{gpus(2, memory_bytes=None)}]", ON_2 + ", min_gpu_memory_gb: 70"),
    (f"gpus: [{gpus(2, nvlink_domain=None)}]", ON_2),
    ("gpus: null", ""),
    ("gpus: null, fabrics: null, memory_bytes: null, engines: null, storage: null", ""),
]


@pytest.mark.parametrize(("node", "asked"), UNKNOWN)
def test_what_is_not_reported_is_no_reason_to_reject(node: str, asked: str) -> None:
    (decision,) = decide(fleet_of(f"[{{name: n, {node}}}]"), model("m", asked or "args: []"))
    assert decision.outcome is Outcome.PLACED


def test_a_node_has_all_its_reasons_and_is_charged_to_the_first() -> None:
    node = (
        "{name: n, ready: false, cordoned: true, labels: {}, engines: [], memory_bytes: 1,"
        " storage: [{filesystem: a, free_bytes: 1}], gpus: [], fabrics: []}"
    )
    asked = ON_2_NODES + ", min_memory_gb: 1, min_disk_gb: 1, node_selector: {a: b}"
    (decision,) = decide(fleet_of(f"[{node}]"), model("m", asked))
    assert [reason.code.value for reason in reasons(decision, "n")] == [
        "not_ready",
        "cordoned",
        "label_mismatch",
        "engine_absent",
        "memory_short",
        "disk_short",
        "gpu_class_absent",
        "no_fabric",
    ]
    assert dict(decision.tried[0].counts) == {"not_ready": 1}


def test_what_is_not_asked_fits_anywhere() -> None:
    poorest = "{name: n, memory_bytes: 0, storage: [{filesystem: a, free_bytes: 0}], gpus: []}"
    (decision,) = decide(fleet_of(f"[{poorest}]"), model("m", "args: []"))
    assert decision.outcome is Outcome.PLACED
    assert where(decision) == [("n", ())]


def test_asking_nothing_holds_nothing() -> None:
    fleet = fleet_of("[{name: n, memory_bytes: 32000000000}]")
    first, second = decide(fleet, model("a", "args: []"), model("b", "min_memory_gb: 32"))
    assert first.outcome is second.outcome is Outcome.PLACED


def test_two_replicas_of_24_gb_do_not_fit_a_node_of_32() -> None:
    fleet = fleet_of("[{name: n, memory_bytes: 32000000000}]")
    first, second = decide(fleet, model("m", "min_memory_gb: 24", replicas=2))
    assert first.outcome is Outcome.PLACED
    assert messages(second, "n") == ["has 32 GB of memory, 24 held by m-0, needs 24"]


def test_no_two_local_filesystems_add_up() -> None:
    two = "[{filesystem: a, free_bytes: 30000000000}, {filesystem: b, free_bytes: 30000000000}]"
    fleet = fleet_of(f"[{{name: n, storage: {two}}}]")
    first, second, third = decide(
        fleet, model("m", "min_disk_gb: 40"), model("k", "min_disk_gb: 30", replicas=2)
    )
    assert first.outcome is Outcome.UNPLACEABLE
    assert second.outcome is third.outcome is Outcome.PLACED


@pytest.mark.parametrize(
    ("storage", "outcome"),
    [
        ("{free_bytes: 1, total_bytes: 2}, {free_bytes: 50000000000, total_bytes: 60000000000}", 1),
        ("{free_bytes: 50000000000, total_bytes: 60000000000}, {free_bytes: 1, total_bytes: 2}", 1),
        ("{free_bytes: 50000000000}, {free_bytes: 1}", 0),
        ("{free_bytes: 1}, {free_bytes: 50000000000}", 0),
        ("{free_bytes: null}, {free_bytes: 1}", 0),
        ("{free_bytes: null}, {free_bytes: null}", 1),
    ],
)
def test_filesystems_of_one_name_are_one_unless_their_sizes_differ(
    storage: str, outcome: int
) -> None:
    named = storage.replace("{", "{filesystem: tmpfs, ")
    fleet = fleet_of(f"[{{name: n, storage: [{named}]}}]")
    (decision,) = decide(fleet, model("m", "min_disk_gb: 40"))
    assert decision.outcome is (Outcome.PLACED if outcome else Outcome.UNPLACEABLE)
    (naive,) = naive_plan(catalog_of(model("m", "min_disk_gb: 40")), fleet)
    assert naive.outcome == decision.outcome.value


@pytest.mark.parametrize(
    ("uuid", "uuids"), [("null", "[other]"), ("GPU-1", "[]"), ("GPU-1", "[GPU-0]")]
)
def test_what_is_kept_names_the_ill_cards_that_placement_says_it_holds(
    uuid: str, uuids: str
) -> None:
    cards = "{index: 0, class: c, uuid: GPU-0}"
    ill = f"{{index: 1, class: c, uuid: {uuid}, healthy: false, unhealthy_reason: missing}}"
    hold = f"{{replica: m-0, model: m, index: 0, node: n, gpus: [0, 1], gpu_uuids: {uuids}}}"
    fleet = fleet_of(f"[{{name: n, gpus: [{cards}, {ill}]}}]", f"[{hold}]")
    (decision,) = decide(fleet, model("m", ON_2))
    assert decision.outcome is Outcome.KEPT
    assert decision.why == "already holds its place on n; GPU 1 of n is unhealthy: missing"


@pytest.mark.parametrize("state", list(AllocationState))
def test_an_allocation_holds_in_every_state(state: AllocationState) -> None:
    fleet = fleet_of(
        f"[{{name: n, gpus: [{gpus(2)}]}}]",
        f"[{{replica: old-0, node: n, gpus: [0], state: {state.value}}}]",
    )
    (decision,) = decide(fleet, model("m", ON_2))
    assert messages(decision, "n") == [f"has 1 free of 2 {H100} (1 allocated to old-0), needs 2"]


def test_a_replica_that_holds_is_kept_and_one_whose_node_is_lost_is_placed_elsewhere() -> None:
    nodes = f"[{{name: a, gpus: [{gpus(2)}]}}, {{name: b, gpus: [{gpus(2)}]}}]"
    mine = "replica: m-0, model: m, index: 0, profile: p0, node: a, gpus: [0, 1]"
    (kept,) = decide(fleet_of(nodes, f"[{{{mine}}}]"), model("m", ON_2))
    assert kept.outcome is Outcome.KEPT
    assert where(kept) == [("a", (0, 1))]
    assert kept.profile == "p0"
    (moved,) = decide(fleet_of(nodes, f"[{{{mine}, state: lost}}]"), model("m", ON_2))
    assert moved.outcome is Outcome.PLACED
    assert where(moved) == [("b", (0, 1))]


def test_an_allocation_by_uuid_holds_the_card_whatever_its_index_is_now() -> None:
    cards = ", ".join(f"{{index: {at}, uuid: GPU-{at}, class: {H100}}}" for at in range(3))
    fleet = fleet_of(
        f"[{{name: n, gpus: [{cards}]}}]",
        "[{replica: old-0, node: n, gpus: [0], gpu_uuids: [GPU-1]}]",
    )
    (decision,) = decide(fleet, model("m", ON_2))
    assert where(decision) == [("n", (0, 2))]


# Faults that others had.


def test_b011_a_card_with_somebody_elses_process_is_not_free() -> None:
    cards = ", ".join(
        f"{{index: {at}, class: {H100}, foreign_processes: {int(at < 4)}}}" for at in range(8)
    )
    fleet = fleet_of(f"[{{name: n, gpus: [{cards}]}}]")
    four, eight = (f"gpu_class: {H100}, gpus_per_node: {count}" for count in (4, 8))
    (x,) = decide(fleet, model("x", four))
    assert where(x) == [("n", (4, 5, 6, 7))]
    (y,) = decide(fleet, model("y", eight))
    assert messages(y, "n") == [f"has 4 free of 8 {H100} (4 held by another process), needs 8"]
    # Neighbour: unknown is not one.
    unknown = fleet_of(f"[{{name: n, gpus: [{gpus(8, foreign_processes=None)}]}}]")
    (z,) = decide(unknown, model("y", eight))
    assert z.outcome is Outcome.PLACED


def test_b012_a_pinned_replica_waits_for_its_node_and_says_so() -> None:
    cards = f"gpus: [{gpus(2)}]"
    a = f'{{name: a, labels: {{host: a}}, {cards}, ready: false, not_ready_since: "12:03:10"}}'
    b = f"{{name: b, labels: {{host: b}}, {cards}}}"
    pinned = model("m", ON_2 + ", node_selector: {host: a}")
    (decision,) = decide(fleet_of(f"[{a}, {b}]"), pinned)
    assert decision.outcome is Outcome.UNPLACEABLE
    assert messages(decision, "a") == ["is not ready since 12:03:10"]
    assert messages(decision, "b") == ["carries host=b, needs host=a"]
    # Neighbour: it returns.
    (back,) = decide(fleet_of(f"[{a.replace('ready: false', 'ready: true')}, {b}]"), pinned)
    assert where(back) == [("a", (0, 1))]


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_b014_a_higher_priority_moves_nothing_that_runs_and_names_the_holder(
    shape: tuple[int, int],
) -> None:
    replicas, count = shape
    fleet = fleet_of(
        f"[{{name: n, gpus: [{gpus(2)}]}}]",
        "[{replica: low-0, model: low, index: 0, profile: p0, node: n, gpus: [0, 1]}]",
    )
    *high, low = decide(
        fleet,
        model("high", f"gpu_class: {H100}, gpus_per_node: {count}", replicas=replicas, priority=90),
        model("low", ON_2, priority=10),
    )
    assert low.outcome is Outcome.KEPT
    for decision in high:
        assert messages(decision, "n") == [
            f"has 0 free of 2 {H100} (2 allocated to low-0), needs {count}"
        ]
    # Neighbour: with the room gone free, all of them fit.
    again = decide(
        replace(fleet, allocations=()),
        model("high", f"gpu_class: {H100}, gpus_per_node: {count}", replicas=replicas, priority=90),
        model("low", ON_2, priority=10),
    )
    assert [one.outcome.value for one in again] == ["placed"] * replicas + ["unplaceable"]


@pytest.mark.parametrize("split", [[3], [2, 2]])
def test_b016_a_multi_node_replica_is_whole_or_holds_nothing(split: list[int]) -> None:
    nodes = ", ".join(
        f"{{name: n{at}, gpus: [{gpus(1)}], fabrics: [{{name: ib0, hcas: [mlx5_0]}}]}}"
        for at in range(4)
    )
    models = [model(f"m{at}", ON_2_NODES, replicas=count) for at, count in enumerate(split)]
    decisions = decide(fleet_of(f"[{nodes}]"), *models)
    placed = [one for one in decisions if one.outcome is Outcome.PLACED]
    assert [len(one.shards) for one in placed] == [2, 2]
    assert len({shard.node for one in placed for shard in one.shards}) == 4
    for one in decisions:
        if one.outcome is not Outcome.PLACED:
            assert one.shards == ()
            assert [(f.eligible, f.needs) for f in one.tried[0].fabrics] == [(0, 2)]
            assert one.tried[0].fabrics[0].message == "ib0 has 0 nodes that fit, needs 2"


def test_b018_two_pairs_fit_four_cards_and_the_third_is_told_the_remainder() -> None:
    fleet = fleet_of(f"[{{name: n, gpus: [{gpus(4)}]}}]")
    first, second = decide(fleet, model("p", ON_2, replicas=2))
    assert where(first) + where(second) == [("n", (0, 1)), ("n", (2, 3))]
    third = decide(fleet, model("p", ON_2, replicas=3))[2]
    assert messages(third, "n") == [f"has 0 free of 4 {H100} (4 allocated to p-0, p-1), needs 2"]


# Where things go.


def test_a_small_replica_fills_the_used_node_and_leaves_the_whole_one_free() -> None:
    fleet = fleet_of(
        f"[{{name: a, gpus: [{gpus(8)}]}}, {{name: b, gpus: [{gpus(8)}]}}]",
        "[{replica: old-0, node: b, gpus: [0, 1]}]",
    )
    small, large = decide(
        fleet, model("s", f"gpu_class: {H100}"), model("l", f"gpu_class: {H100}, gpus_per_node: 8")
    )
    assert where(small) == [("b", (2,))]
    assert where(large) == [("a", tuple(range(8)))]


def test_a_group_stays_inside_the_tightest_nvlink_domain_that_fits() -> None:
    domains = [0, 0, 0, 0, 1, 1, 2]
    cards = ", ".join(
        f"{{index: {at}, class: {H100}, nvlink_domain: {domain}}}"
        for at, domain in enumerate(domains)
    )
    fleet = fleet_of(f"[{{name: n, gpus: [{cards}]}}]")
    (pair,) = decide(fleet, model("m", ON_2))
    assert where(pair) == [("n", (4, 5))]
    (one,) = decide(fleet, model("m", f"gpu_class: {H100}"))
    assert where(one) == [("n", (6,))]
    (five,) = decide(fleet, model("m", f"gpu_class: {H100}, gpus_per_node: 5"))
    assert where(five) == [("n", (0, 1, 2, 3, 4))]
    assert "NVLink" in five.why


def test_cpu_replicas_spread_and_avoid_nodes_with_cards() -> None:
    fleet = fleet_of(
        f"[{{name: a, gpus: [{gpus(1)}]}}, {{name: b, gpus: [], memory_bytes: 1000000000}},"
        " {name: c, gpus: [], memory_bytes: 2000000000}, {name: d, gpus: []}]"
    )
    placed = decide(fleet, model("m", "args: []", replicas=5))
    assert [where(one)[0][0] for one in placed] == ["c", "b", "d", "a", "c"]


def test_several_nodes_take_the_smallest_fabric_that_suffices_and_its_emptiest_nodes() -> None:
    def node(name: str, count: int, *fabrics: str) -> str:
        on = ", ".join(f"{{name: {fabric}, hcas: [{fabric}_x, {fabric}_y]}}" for fabric in fabrics)
        return f"{{name: {name}, gpus: [{gpus(count)}], fabrics: [{on}]}}"

    fleet = fleet_of(
        f"[{node('a', 2, 'big')}, {node('b', 2, 'big')}, {node('c', 8, 'big', 'small')},"
        f" {node('d', 2, 'small')}, {node('e', 4, 'small')}, {node('f', 8, 'big')},"
        f" {node('g', 8, 'alone')}]"
    )
    (decision,) = decide(fleet, model("m", ON_2 + ", nodes: 2"))
    assert decision.fabric == "small"
    assert where(decision) == [("c", (0, 1)), ("e", (0, 1))]
    assert [shard.hcas for shard in decision.shards] == [("small_x", "small_y")] * 2
    assert {f.fabric: f.eligible for f in decision.tried[0].fabrics} == {
        "alone": 1,
        "big": 4,
        "small": 3,
    }
    # On a fabric that is too small, and fits by itself.
    assert messages(decision, "g") == ["alone has 1 node that fits, needs 2"]


def test_the_lower_profile_is_used_when_the_higher_is_refused_and_both_are_explained() -> None:
    fleet = fleet_of("[{name: n, gpus: [], memory_bytes: 32000000000}]")
    (decision,) = decide(
        fleet, model("m", "min_memory_gb: 24, priority: 10", ON_2 + ", priority: 100")
    )
    assert [(tried.profile, tried.fits) for tried in decision.tried] == [
        ("p1", False),
        ("p0", True),
    ]
    assert decision.profile == "p0"


def test_the_most_constrained_goes_first_whatever_the_order_of_the_file() -> None:
    fleet = fleet_of(
        f"[{{name: a, labels: {{pool: x}}, gpus: [{gpus(1)}]}}, {{name: b, gpus: [{gpus(1)}]}}]"
    )
    anywhere, pinned = decide(
        fleet,
        model("anywhere", f"gpu_class: {H100}"),
        model("pinned", f"gpu_class: {H100}, node_selector: {{pool: x}}"),
    )
    assert (anywhere.order, pinned.order) == (2, 1)
    assert where(pinned) == [("a", (0,))]
    assert where(anywhere) == [("b", (0,))]


def test_an_empty_fleet_refuses_and_an_empty_catalog_asks_nothing() -> None:
    (decision,) = decide(Fleet(), model("m", ON_2))
    assert decision.outcome is Outcome.UNPLACEABLE
    assert decision.tried[0].considered == decision.tried[0].fit == 0
    assert decision.why
    assert plan(Catalog(), fleet_of("[{name: n}]")) == ()
    assert decide(fleet_of("[{name: n}]"), model("m", "args: []", replicas=0)) == ()


# Other people's machines.


def on(gpu_class: str, count: int, **more: Any) -> Catalog:
    profile = Profile(
        name=ProfileName("p"),
        engine=Engine.VLLM,
        source="s",
        gpu_class=GpuClass(gpu_class),
        gpus_per_node=count,
        **more,
    )
    return Catalog(models=(Model(name=ModelName("m"), profiles=(profile,)),))


def outcome(decisions: Sequence[Decision]) -> list[str]:
    return [decision.outcome.value for decision in decisions]


def test_every_captured_worker_is_refused_or_chosen_and_can_be_written() -> None:
    fleet = captured_fleets.gpustack_fleet()
    assert len(fleet.nodes) == 27
    classes = {gpu.gpu_class for node in fleet.nodes for gpu in node.facts.gpus or ()}
    for gpu_class in sorted(classes):
        decisions = plan(on(gpu_class, 1), fleet)
        assert outcome(decisions) == ["placed"]
        told = decisions_to_json(decisions)["decisions"][0]["tried"][0]
        assert told["fit"] + sum(told["counts"].values()) == 27


def test_nodes_of_h100_and_of_a100_never_make_one_replica() -> None:
    both = captured_fleets.gpustack_fleet(
        "linux_nvidia_22_H100_80gx8", "linux_nvidia_13_A100_80gx8"
    )
    on_one = parse_fleet("nodes: [{name: n, fabrics: [{name: ib0, hcas: [x]}]}]", filename="f")
    fabrics = on_one.fleet.nodes[0].facts.fabrics
    fleet = Fleet(
        nodes=tuple(replace(n, facts=replace(n.facts, fabrics=fabrics)) for n in both.nodes)
    )
    (refused,) = plan(on("h100-sxm5", 8, nodes=2), fleet)
    assert refused.outcome is Outcome.UNPLACEABLE
    assert messages(refused, "linux_nvidia_13_A100_80gx8") == ["has no h100-sxm5, needs 8"]
    assert messages(refused, "linux_nvidia_22_H100_80gx8") == ["ib0 has 1 node that fits, needs 2"]
    # Neighbour: two of the H100 nodes do.
    pair = captured_fleets.gpustack_fleet(
        "linux_nvidia_22_H100_80gx8", "linux_nvidia_24_H100_80gx8"
    )
    more = tuple(replace(n, facts=replace(n.facts, fabrics=fabrics)) for n in pair.nodes)
    (placed,) = plan(on("h100-sxm5", 8, nodes=2), Fleet(nodes=(*more, fleet.nodes[0])))
    assert len(placed.shards) == 2


def test_mixed_cards_are_judged_one_by_one() -> None:
    fleet = captured_fleets.gpustack_fleet("linux_nvidia_21_4090_24gx4_3060_12gx4")
    (node,) = fleet.nodes
    cards = {gpu.index: gpu for gpu in node.facts.gpus or ()}
    large = tuple(
        index
        for index, gpu in sorted(cards.items())
        if gpu.gpu_class == "nvidia-rtx-3060" and (gpu.memory_bytes or 0) > 20 * GB
    )
    assert len(large) == 1
    (one,) = plan(on("nvidia-rtx-3060", 1, min_gpu_memory_bytes=20 * GB), fleet)
    assert where(one) == [(node.name, large)]
    (two,) = plan(on("nvidia-rtx-3060", 2, min_gpu_memory_bytes=20 * GB), fleet)
    assert messages(two, node.name) == ["has 1 nvidia-rtx-3060 with 20 GB or more of 4, needs 2"]
    (all_four,) = plan(on("nvidia-rtx-4090", 4, min_gpu_memory_bytes=24 * GB), fleet)
    assert [cards[at].gpu_class for at in all_four.shards[0].gpus] == ["nvidia-rtx-4090"] * 4


def test_a_disk_mounted_twice_counts_once() -> None:
    (node,) = captured_fleets.gpustack_fleet("linux_nvidia_3_4090_24gx1").nodes
    assert node.facts.storage is not None
    root = next(one for one in node.facts.storage if "vgubuntu" in one.filesystem)
    assert len(root.mounts) == 2
    # As the file would say it, a line for each mount.
    twice = tuple(replace(root, mounts=(mount,)) for mount in root.mounts)
    fleet = Fleet(nodes=(replace(node, facts=replace(node.facts, storage=twice)),))
    free = root.free_bytes or 0
    catalog = on("nvidia-geforce-rtx-4090-d", 1)
    (shape,) = catalog.models[0].profiles
    cpu = replace(shape, gpu_class=None, gpus_per_node=0, min_disk_bytes=free * 3 // 5)
    asked = Catalog(models=(replace(catalog.models[0], replicas=2, profiles=(cpu,)),))
    assert outcome(plan(asked, fleet)) == ["placed", "unplaceable"]


def test_a_trace_of_a_real_cluster_is_placed_whole() -> None:
    fleet, catalog = captured_fleets.alibaba_fleet(), captured_fleets.alibaba_catalog()
    decisions = plan(catalog, fleet)
    assert len(decisions) == sum(model.replicas for model in catalog.models) > 3_900
    cards = {node.name: {gpu.index: gpu for gpu in node.facts.gpus or ()} for node in fleet.nodes}
    taken: set[tuple[str, int]] = set()
    for decision in decisions:
        assert decision.outcome is Outcome.PLACED
        (shard,) = decision.shards
        classes = {cards[shard.node][index].gpu_class for index in shard.gpus}
        assert [str(one) for one in classes] == [decision.profile]
        here = {(str(shard.node), index) for index in shard.gpus}
        assert len(here) == len(shard.gpus)
        assert not here & taken
        taken |= here
