"""The index: events change it, views don't change, and no history shows in it."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from roost.domain.allocation import Allocation, ReplicaName
from roost.domain.fleet import Fleet
from roost.domain.model import Catalog
from roost.domain.node import Node, NodeName
from roost.placement.decide import Ask, Placed, decide
from roost.placement.index import Index
from roost.placement.rows import Row
from roost.placement.view import View

often = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def row_told(row: Row) -> tuple[Any, ...]:
    holds = sorted(zip(map(repr, row.holds), row.held, strict=True))
    kept = (row.free, row.taken, row.broken, row.foreign, row.memory_left, row.disk_room)
    return (row.node, holds, kept, row.cpu_replicas, row.gpus, row.cards is None)


def told(view: View) -> dict[str, Any]:
    """All that a view says, without what it merely remembers."""
    return {
        "places": view.places,
        "rows": [row_told(row) for row in view.every_row()],
        "every": view.lasting.every,
        "lasting": view.lasting.sets,
        "fabrics": view.lasting.fabrics,
        "scarcity": view.lasting.scarcity,
        "present": view.present,
        "numbers": view.numbers,
    }


def answers(catalog: Catalog, view: View) -> list[Any]:
    """What each model would be told, every row of it."""
    found = []
    for model in catalog.models:
        answer = decide(Ask(model, 9), view)
        tried = [
            (one.profile, one.fit, dict(one.counts), tuple(one.rejected), tuple(one.fabrics))
            for one in answer.tried
        ]
        found.append((answer.shards, answer.why, tuple(answer.would_fit_if), tried))
    return found


@st.composite
def changed(draw: st.DrawFn, node: Node) -> Node:
    """The same node as some later report or order has it."""
    other = draw(strategies.nodes(node.name))
    part = draw(st.sampled_from(["ready", "cordoned", "draining", "gpus", "facts", "all"]))
    if part == "ready":
        return replace(node, ready=not node.ready)
    if part == "cordoned":
        return replace(node, cordoned=not node.cordoned)
    if part == "draining":
        return replace(node, draining=not node.draining)
    if part == "gpus":
        return replace(node, facts=replace(node.facts, gpus=other.facts.gpus))
    if part == "facts":
        return replace(node, facts=other.facts)
    return other


def carried_out(
    index: Index,
    nodes: dict[NodeName, Node],
    holds: list[Allocation],
    catalog: Catalog,
    data: st.DataObject,
) -> None:
    """One event, in the index and in the rows."""
    kinds = ["observe"]
    if holds:
        kinds.append("release")
    if catalog.models:
        kinds += ["place", "place"]
    kind = data.draw(st.sampled_from(kinds))
    if kind == "observe":
        name = data.draw(st.sampled_from(sorted(nodes)))
        nodes[name] = data.draw(changed(nodes[name]))
        index.observe(nodes[name])
    elif kind == "release":
        hold = holds.pop(data.draw(st.integers(0, len(holds) - 1)))
        index.release(hold)
    else:
        model = data.draw(st.sampled_from(catalog.models))
        answer = decide(Ask(model, len(holds) + 10), index.view)
        if isinstance(answer, Placed):
            for hold in answer.allocations:
                index.allocate(hold)
                holds.append(hold)


@often
@given(strategies.catalogs(least=1), strategies.fleets(least=1), st.data())
def test_after_any_events_the_index_equals_one_built_anew(
    catalog: Catalog, fleet: Fleet, data: st.DataObject
) -> None:
    index = Index(catalog, fleet)
    nodes = {node.name: node for node in fleet.nodes}
    holds = list(fleet.allocations)
    for _ in range(data.draw(st.integers(1, 8))):
        carried_out(index, nodes, holds, catalog, data)
    rows = Fleet(nodes=tuple(nodes.values()), allocations=tuple(holds))
    anew = Index(catalog, rows).view
    assert told(index.view) == told(anew)
    assert answers(catalog, index.view) == answers(catalog, anew)


@often
@given(strategies.catalogs(least=1), strategies.fleets(least=1), st.data())
def test_a_view_and_an_answer_stay_as_they_were_whatever_happens_later(
    catalog: Catalog, fleet: Fleet, data: st.DataObject
) -> None:
    index = Index(catalog, fleet)
    view, said = index.view, told(index.view)
    unread = [decide(Ask(model, 9), view) for model in catalog.models]
    nodes, holds = {node.name: node for node in fleet.nodes}, list(fleet.allocations)
    for _ in range(4):
        carried_out(index, nodes, holds, catalog, data)
    assert told(view) == said
    for answer, fresh in zip(unread, answers(catalog, Index(catalog, fleet).view), strict=True):
        assert answer.why == fresh[1]
        assert [tuple(one.rejected) for one in answer.tried] == [one[3] for one in fresh[3]]


def test_a_node_that_joins_and_one_that_is_deleted_are_as_if_built_so() -> None:
    names = [NodeName(name) for name in ("b", "d", "a", "c")]
    nodes = [Node(name=name) for name in names]
    holds = [Allocation(replica=ReplicaName(f"x-{name}"), node=name) for name in names]
    index = Index(Catalog(), Fleet(nodes=tuple(nodes[:3]), allocations=tuple(holds)))
    index.observe(nodes[3])
    index.allocate(holds[3])
    index.forget(nodes[0].name)
    anew = Index(Catalog(), Fleet(nodes=tuple(nodes[1:]), allocations=tuple(holds[1:])))
    assert told(index.view) == told(anew.view)
    assert list(index.view.places) == ["a", "c", "d"]
