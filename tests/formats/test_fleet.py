"""The fleet file: every rule of its format, and what is said when one is broken."""

import json
import math
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings

import strategies
from roost.domain.allocation import AllocationState
from roost.domain.fleet import Fleet
from roost.domain.node import Facts, Filesystem, Node, NodeName
from roost.errors import Unusable
from roost.formats.fleet import fleet_schema, fleet_to_json, parse_fleet

EXAMPLE = """
nodes:
- name: gpu-a                      # unique
  ready: true
  cordoned: false
  labels: {pool: code}
  memory_bytes: 540000000000
  engines: [vllm, llama.cpp]
  gpus:
  - {index: 0, uuid: GPU-0, class: H100-80GB-HBM3, memory_bytes: 85520809984, nvlink_domain: 0, healthy: true, unhealthy_reason: null, foreign_processes: 0}
  - {index: 1, uuid: GPU-1, class: h100-80gb-hbm3}
  fabrics:
  - {name: ib0, hcas: [mlx5_0, mlx5_1]}
  storage:
  - {filesystem: /dev/nvme0n1p2, mounts: [/, /models], shared: false, free_bytes: 24000000000, total_bytes: 100000000000}
allocations:
- {replica: coder-0, model: coder, index: 0, profile: h100, node: gpu-a, gpus: [0, 1], memory_bytes: null, disk_bytes: null, state: held}
"""


def read(text: str, filename: str = "fleet.yaml") -> Fleet:
    return parse_fleet(text, filename=filename).fleet


def problems(text: str, filename: str = "fleet.yaml") -> tuple[str, ...]:
    with pytest.raises(Unusable) as caught:
        parse_fleet(text, filename=filename)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_the_example_is_read_with_every_field() -> None:
    fleet = read(EXAMPLE)
    (node,) = fleet.nodes
    assert (node.name, node.ready, node.cordoned) == ("gpu-a", True, False)
    facts = node.facts
    assert facts.labels == {"pool": "code"}
    assert facts.memory_bytes == 540 * 10**9
    assert facts.engines == frozenset({"vllm", "llama.cpp"})
    assert facts.gpus is not None
    first, second = facts.gpus
    assert (first.uuid, first.gpu_class, first.nvlink_domain) == ("GPU-0", "h100-80gb-hbm3", 0)
    assert (second.healthy, second.foreign_processes, second.memory_bytes) == (None, None, None)
    assert facts.fabrics is not None
    assert facts.fabrics[0].hcas == ("mlx5_0", "mlx5_1")
    assert facts.storage is not None
    assert facts.storage[0].free_bytes == 24 * 10**9
    (held,) = fleet.allocations
    assert (held.replica, held.gpus, held.state) == ("coder-0", (0, 1), AllocationState.HELD)


@pytest.mark.parametrize("missing", ["null", "absent"])
def test_what_is_not_reported_is_none_and_never_empty(missing: str) -> None:
    keys = ["labels", "memory_bytes", "engines", "gpus", "fabrics", "storage", "ready", "cordoned"]
    node = {"name": "a"} | (dict.fromkeys(keys) if missing == "null" else {})
    (got,) = read(json.dumps({"nodes": [node]})).nodes
    assert got == Node(name=NodeName("a"), facts=Facts())


def test_an_empty_list_is_none_there_and_not_unknown() -> None:
    (node,) = read("nodes: [{name: a, gpus: [], engines: [], fabrics: [], storage: []}]").nodes
    facts = node.facts
    assert (facts.gpus, facts.engines, facts.fabrics, facts.storage) == ((), frozenset(), (), ())


def test_draining_counts_as_cordoned() -> None:
    (node,) = read("nodes: [{name: a, draining: true, cordon_reason: fan}]").nodes
    assert node.cordoned
    assert node.draining
    assert node.cordon_reason == "fan"


def test_a_fleet_without_nodes_is_a_fleet() -> None:
    assert read("nodes: []") == read('{"nodes": []}', "fleet.json") == Fleet()


def test_keys_of_newer_agents_are_ignored_with_one_warning_that_names_them() -> None:
    parsed = parse_fleet(
        "spin: 1\nnodes: [{name: a, mood: good, gpus: [{index: 0, class: x, fan: 3}]},"
        " {name: b, mood: bad}]",
        filename="f.yaml",
    )
    assert parsed.warnings == (
        "f.yaml: ignored keys this version does not know: spin, nodes[].mood, nodes[].gpus[].fan",
    )
    assert len(parsed.fleet.nodes) == 2


def test_what_the_live_server_adds_is_no_reason_to_warn() -> None:
    text = (
        "nodes: [{name: a, status: ready, last_report_age_s: 1.5, agent_version: 0.1, "
        "address: 10.0.0.1, problems: []}]"
    )
    assert parse_fleet(text, filename="f.yaml").warnings == ()


def test_one_filesystem_listed_for_each_of_its_mounts_counts_once() -> None:
    one = "filesystem: /dev/a, shared: false, free_bytes: 7, total_bytes: 9"
    (node,) = read(
        f"nodes: [{{name: a, storage: [{{{one}, mounts: [/]}}, {{{one}, mounts: [/models]}},"
        " {filesystem: tmpfs, free_bytes: 1}, {filesystem: tmpfs, free_bytes: 2}]}]"
    ).nodes
    assert node.facts.storage is not None
    assert [(fs.filesystem, fs.mounts) for fs in node.facts.storage] == [
        ("/dev/a", ("/", "/models")),
        ("tmpfs", ()),
        ("tmpfs", ()),
    ]


WRONG = [
    ("", "fleet.yaml: is empty"),
    ("# nothing\n", "fleet.yaml: is empty"),
    ("- a\n", "fleet.yaml:1: is a list"),
    ("allocations: []\n", "has no `nodes`"),
    ("nodes: 3\n", "fleet.yaml:1: the file: `nodes` is 3: it is a list"),
    ("nodes:\n- gpu-a\n", "fleet.yaml:2: a node is a mapping, not text"),
    ("nodes:\n- {ready: true}\n", "fleet.yaml:2: a node has no `name`"),
    ("nodes:\n- {name: 7}\n", "fleet.yaml:2: a node: `name` is 7: it is text, so quote it"),
    ("nodes:\n- {name: a}\n- {name: a}\n", "fleet.yaml:3: node a is there twice"),
    ("nodes:\n- name: a\n  ready: 1\n", "fleet.yaml:3: node a: `ready` is 1: it is true or false"),
    ("nodes: [{name: a, memory_bytes: -1}]", "`memory_bytes` is -1: it is a whole number"),
    ("nodes: [{name: a, memory_bytes: 1.5}]", "`memory_bytes` is 1.5: it is a whole number"),
    ("nodes: [{name: a, memory_bytes: true}]", "`memory_bytes` is true: it is a whole number"),
    ("nodes: [{name: a, memory_bytes: .nan}]", "'.nan' is no number"),
    ("nodes: [{name: a, labels: {ram: 32}}]", "label ram is 32: a label is text, so quote it"),
    ("nodes: [{name: a, labels: [x]}]", "`labels` is"),
    ("nodes: [{name: a, engines: vllm}]", '`engines` is "vllm": it is a list of texts'),
    ("nodes: [{name: a, gpus: [{class: x}]}]", "gpus[0]: has no `index`"),
    ("nodes: [{name: a, gpus: [{index: 0}]}]", "gpus[0]: has no `class`"),
    (
        "nodes:\n- name: a\n  gpus:\n  - {index: 0, class: x}\n  - {index: 0, class: x}\n",
        "fleet.yaml:5: node a: GPU index 0 is there twice: give each card its own",
    ),
    (
        "nodes: [{name: a, gpus: [{index: 0, class: x, uuid: u}, {index: 1, class: x, uuid: u}]}]",
        "GPU uuid u is there twice",
    ),
    (
        "nodes: [{name: a, fabrics: [{name: ib0, hcas: [x]}, {name: ib0, hcas: [y]}]}]",
        "fabric ib0 is there twice",
    ),
    ("nodes: [{name: a, storage: [{mounts: [/]}]}]", "has no `filesystem`"),
    (
        "nodes: []\nallocations:\n- {replica: m-0, node: b}\n",
        "fleet.yaml:3: allocation of m-0: there is no node b",
    ),
    (
        (
            "nodes: [{name: a, gpus: [{index: 0, class: x}]}]\nallocations:\n"
            "- {replica: m-0, node: a, gpus: [0, 1]}\n"
        ),
        "fleet.yaml:3: allocation of m-0: node a lists no GPU 1",
    ),
    (
        "nodes: [{name: a}]\nallocations: [{replica: m-0, node: a, state: gone}]",
        '`state` is "gone": it is one of held, stopping, lost',
    ),
    ("nodes: [{name: a}]\nallocations: [{node: a}]", "an allocation has no `replica`"),
    ("nodes: [{name: a}]\nallocations: [{replica: m-0}]", "has no `node`"),
    ("nodes: [{name: a, name: b}]", "has the key 'name' twice"),
    ("nodes: [", "fleet.yaml:1:"),
    ("nodes:\n\t- a", "fleet.yaml:2:"),
    ("a: &a [*a]", "fleet.yaml:1:"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_cannot_be_used_is_said_with_its_line_and_what_to_change(text: str, said: str) -> None:
    (problem,) = problems(text)
    assert said in problem


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    told = problems("nodes:\n- {name: a, ready: 1}\n- {name: b, ready: 2}\n- 3\n")
    assert [line.split(":")[1] for line in told] == ["2", "3", "4"]


def test_json_problems_have_their_line_too() -> None:
    text = json.dumps({"nodes": [{"name": "a"}, {"name": "b", "ready": 3}]}, indent=1)
    (problem,) = problems(text, "fleet.json")
    line = text.splitlines().index('   "ready": 3') + 1
    assert problem.startswith(f"fleet.json:{line}: node b: `ready` is 3")


def test_broken_json_is_said_to_be_json_that_is_broken() -> None:
    (problem,) = problems('{"nodes": [}', "fleet.json")
    assert problem.startswith("fleet.json: is not JSON: ")


@pytest.mark.parametrize("filename", ["fleet.json", "fleet.yaml"])
def test_json_that_is_nested_without_end_is_a_problem_of_the_file(filename: str) -> None:
    (problem,) = problems('{"nodes":' + "[" * 5000 + "]" * 5000 + "}", filename)
    assert problem == f"{filename}: is nested too deeply"


def test_a_gpu_is_accepted_where_the_node_reports_none() -> None:
    fleet = read("nodes: [{name: a, gpus: null}]\nallocations: [{replica: x, node: a, gpus: [7]}]")
    assert fleet.allocations[0].gpus == (7,)
    (told,) = problems(
        "nodes: [{name: a, gpus: []}]\nallocations: [{replica: x, node: a, gpus: [7]}]"
    )
    assert "lists no GPU 7" in told


@pytest.mark.parametrize(
    ("held", "names"),
    [
        ("gpus: [1], gpu_uuids: [u0]", None),  # it was numbered 1 once
        ("gpus: [9], gpu_uuids: [u0]", None),
        ("gpus: [1], gpu_uuids: [u7]", None),  # which uuid that card has isn't known
        ("gpu_uuids: [u0]", None),
        ("gpus: [0, 1], gpu_uuids: [u0]", None),
        ("gpus: [0], gpu_uuids: [u7]", "u7"),
        ("gpus: [9], gpu_uuids: [u7]", "9"),
        ("gpu_uuids: [u7]", "u7"),
        ("gpus: [0, 1], gpu_uuids: [u7]", None),
        ("gpus: [0], gpu_uuids: [u7, u8]", "u7"),
        ("gpus: [0, 9], gpu_uuids: [u0]", "9"),
    ],
)
def test_an_allocation_of_a_card_that_its_node_does_not_list_is_an_error_that_names_it(
    held: str, names: str | None
) -> None:
    text = (
        "nodes: [{name: a, gpus: [{index: 0, class: x, uuid: u0}, {index: 1, class: x}]}]\n"
        f"allocations: [{{replica: m-0, node: a, {held}}}]"
    )
    if names is None:
        assert len(read(text).allocations) == 1
        return
    told, *_ = problems(text)
    assert f"node a lists no GPU {names}: " in told


def test_a_whole_number_written_with_an_exponent_is_one() -> None:
    (node,) = read('{"nodes": [{"name": "a", "memory_bytes": 5.4e11}]}').nodes
    assert node.facts.memory_bytes == 54 * 10**10
    assert isinstance(node.facts.memory_bytes, int)
    assert math.isclose(node.facts.memory_bytes, 5.4e11)


@settings(max_examples=200, deadline=None)
@given(strategies.fleets())
def test_a_fleet_written_is_read_back_as_it_was(fleet: Fleet) -> None:
    written = fleet_to_json(fleet)
    jsonschema.validate(written, fleet_schema())
    parsed = parse_fleet(json.dumps(written), filename="fleet.json")
    assert parsed.warnings == ()
    assert parsed.fleet.nodes == tuple(mounted_once(node) for node in fleet.nodes)
    assert parsed.fleet.allocations == fleet.allocations


def mounted_once(node: Node) -> Node:
    """Two filesystems that say the same of themselves are read as one with all their mounts."""
    merged: dict[object, Filesystem] = {}
    for one in node.facts.storage or ():
        key = replace(one, mounts=())
        mounts = merged[key].mounts if key in merged else ()
        merged[key] = replace(one, mounts=tuple(dict.fromkeys(mounts + one.mounts)))
    if node.facts.storage is None:
        return node
    return replace(node, facts=replace(node.facts, storage=tuple(merged.values())))


@settings(max_examples=30, deadline=None)
@given(strategies.fleets())
def test_yaml_and_json_say_the_same(fleet: Fleet) -> None:
    text = json.dumps(fleet_to_json(fleet))
    assert read(f"# YAML\n{text}") == read(text)
