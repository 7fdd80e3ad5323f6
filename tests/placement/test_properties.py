"""What placement always does, on small and mixed fleets; each docstring names a bug that it catches.

`tests/placement/planted_bugs.py` plants those bugs, one at a time, and sees these tests fail.
Property 5, that the index equals one built anew, is in `test_core_index.py`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from roost.domain.allocation import Allocation, AllocationState, replica_name
from roost.domain.fleet import Fleet
from roost.domain.gpu import Gpu
from roost.domain.node import Node
from roost.domain.profile import Profile
from roost.domain.reasons import Code
from roost.formats.decision import decisions_to_json
from roost.placement import plan
from roost.placement.decision import Decision, Outcome
from roost.testing.naive_placement import (
    NaiveDecision,
    NaiveReason,
    NaiveShard,
    NaiveTried,
    World,
    belongs,
    domains_of,
    free_of_class,
    hcas,
    is_allocated,
    is_free,
    large_enough,
    naive_plan,
    rank_for_gpus,
    reasons_against,
)

proven = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def told(decision: Decision) -> NaiveDecision:
    """A decision in the twin's words, without sentences."""
    return NaiveDecision(
        model=decision.model,
        replica=decision.replica,
        order=decision.order,
        outcome=decision.outcome.value,
        profile=decision.profile,
        fabric=decision.fabric,
        shards=tuple(NaiveShard(s.rank, s.node, s.gpus, s.hcas) for s in decision.shards),
        tried=tuple(
            NaiveTried(
                profile=tried.profile,
                considered=tried.considered,
                fit=tried.fit,
                counts=dict(tried.counts),
                rejected={
                    rejection.node: tuple(
                        NaiveReason(reason.code, reason.has, reason.needs, reason.unit)
                        for reason in rejection.reasons
                    )
                    for rejection in tried.rejected
                },
                fabrics=tuple((f.fabric, f.eligible, f.needs) for f in tried.fabrics),
            )
            for tried in decision.tried
        ),
    )


def profile_of(world: strategies.World, decision: Decision) -> Profile:
    model = next(one for one in world.catalog.models if one.name == decision.model)
    return next(one for one in model.profiles if one.name == decision.profile)


def held_by(world: strategies.World, decision: Decision) -> list[Allocation]:
    """What a placed replica then holds."""
    profile = profile_of(world, decision)
    return [
        Allocation(
            replica=replica_name(decision.model, decision.replica),
            model=decision.model,
            index=decision.replica,
            profile=decision.profile,
            node=shard.node,
            gpus=shard.gpus,
            gpu_uuids=shard.gpu_uuids if len(shard.gpu_uuids) == len(shard.gpus) else (),
            memory_bytes=profile.min_memory_bytes,
            disk_bytes=profile.min_disk_bytes,
        )
        for shard in decision.shards
    ]


def replayed(
    world: strategies.World, decisions: Sequence[Decision]
) -> Iterator[tuple[World, Decision, Profile]]:
    """Every placed replica with the world that it was decided in."""
    seen = World(world.catalog, world.fleet.nodes, world.fleet.allocations)
    for decision in sorted(decisions, key=lambda one: one.order):
        if decision.outcome is Outcome.PLACED:
            yield seen, decision, profile_of(world, decision)
            for hold in held_by(world, decision):
                seen.hold(hold)


def node_of(world: World, name: str) -> Node:
    return next(node for node in world.nodes if node.name == name)


def cards_of(node: Node, indices: Sequence[int]) -> list[Gpu]:
    by_index = {gpu.index: gpu for gpu in node.facts.gpus or ()}
    return [by_index[index] for index in indices]


@proven
@given(strategies.worlds)
def test_placed_gpus_are_free_and_of_the_class_and_as_many_as_asked(
    world: strategies.World,
) -> None:
    """Property 1. Catches: a card with a foreign process taken as free."""
    for seen, decision, profile in replayed(world, plan(world.catalog, world.fleet)):
        assert len(decision.shards) == profile.nodes
        for shard in decision.shards:
            node = node_of(seen, shard.node)
            assert len(set(shard.gpus)) == len(shard.gpus) == profile.gpus_per_node
            cards = cards_of(node, shard.gpus)
            for gpu in cards:
                assert gpu.gpu_class == profile.gpu_class
                assert gpu.healthy is not False
                assert not gpu.foreign_processes
                assert not is_allocated(seen, node, gpu)
                assert large_enough(profile, gpu)
            assert shard.gpu_uuids == tuple(gpu.uuid for gpu in cards if gpu.uuid is not None)


@proven
@given(strategies.worlds)
def test_a_plan_carried_out_is_kept_and_released_it_is_made_again(world: strategies.World) -> None:
    """Property 1. Catches: a replica that holds already placed once more."""
    first = plan(world.catalog, world.fleet)
    placed = [decision for decision in first if decision.outcome is Outcome.PLACED]
    holds = tuple(hold for decision in placed for hold in held_by(world, decision))
    before = world.fleet.allocations
    again = plan(world.catalog, replace(world.fleet, allocations=before + holds))
    for was, now in zip(first, again, strict=True):
        if was.outcome is Outcome.PLACED:
            assert now.outcome is Outcome.KEPT
            assert {(s.node, s.gpus) for s in now.shards} == {(s.node, s.gpus) for s in was.shards}
            assert now.profile == was.profile
        else:
            assert now.outcome is was.outcome
    assert as_bytes(plan(world.catalog, world.fleet)) == as_bytes(first)


@proven
@given(strategies.worlds)
def test_a_multi_node_replica_is_on_one_fabric_with_its_adapters(world: strategies.World) -> None:
    """Property 2. Catches: a shard given the adapters of all its fabrics."""
    for seen, decision, profile in replayed(world, plan(world.catalog, world.fleet)):
        if profile.nodes == 1:
            assert decision.fabric is None
            assert all(shard.hcas == () for shard in decision.shards)
            continue
        assert decision.fabric is not None
        assert [shard.rank for shard in decision.shards] == list(range(profile.nodes))
        assert len({shard.node for shard in decision.shards}) == profile.nodes
        for shard in decision.shards:
            assert shard.hcas
            assert shard.hcas == hcas(node_of(seen, shard.node), decision.fabric)


@proven
@given(strategies.worlds)
def test_nothing_is_placed_where_it_may_not_or_cannot_run(world: strategies.World) -> None:
    """Property 3. Catches: the room on several local filesystems added up, no memory held by what was placed."""
    for seen, decision, profile in replayed(world, plan(world.catalog, world.fleet)):
        for shard in decision.shards:
            node = node_of(seen, shard.node)
            assert node.ready
            assert not node.cordoned
            assert all(node.facts.labels.get(k) == v for k, v in profile.node_selector.items())
            assert node.facts.engines is None or profile.engine.value in node.facts.engines
            claims = seen.held_on(node)
            if profile.min_memory_bytes is not None and node.facts.memory_bytes is not None:
                taken = sum(one.memory_bytes or 0 for one in claims)
                assert taken + profile.min_memory_bytes <= node.facts.memory_bytes
            local = [one for one in node.facts.storage or () if not one.shared]
            if profile.min_disk_bytes is not None and local:
                known = [one.free_bytes for one in local]
                assert any(free is None or free >= profile.min_disk_bytes for free in known)
            assert not reasons_against(seen, profile, node)


@proven
@given(strategies.worlds)
def test_every_node_fits_or_is_refused_once_and_the_counts_add_up(world: strategies.World) -> None:
    """Property 4. Catches: a node charged to the last of its reasons instead of the first."""
    decisions = plan(world.catalog, world.fleet)
    names = {node.name for node in world.fleet.nodes}
    for decision in decisions:
        for tried in decision.tried:
            assert tried.considered == len(names)
            assert tried.fit + sum(tried.counts.values()) == tried.considered
            assert tried.fits == (tried.fit > 0)
            assert all(tried.counts.values())
            # Read after the whole plan: as of the decision all the same.
            refused = [rejection.node for rejection in tried.rejected]
            assert len(set(refused)) == len(refused) == tried.considered - tried.fit
            assert refused == sorted(refused)
            assert set(refused) <= names
            first = Counter(rejection.reasons[0].code for rejection in tried.rejected)
            assert dict(first) == dict(tried.counts)
            for rejection in tried.rejected:
                codes = [reason.code for reason in rejection.reasons]
                assert codes == [code for code in Code if code in codes]
                assert all(reason.message for reason in rejection.reasons)
            for fabric in tried.fabrics:
                assert tried.fits or fabric.eligible < fabric.needs
        if decision.outcome is Outcome.UNPLACEABLE:
            assert not any(tried.fits for tried in decision.tried)
            assert decision.shards == ()
            assert len(decision.would_fit_if) <= 5
        else:
            assert tuple(decision.would_fit_if) == ()


def as_bytes(decisions: Sequence[Decision]) -> bytes:
    return json.dumps(decisions_to_json(decisions)).encode()


@proven
@given(strategies.worlds, st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_allocations_changes_no_byte(
    world: strategies.World, random: Random
) -> None:
    """Property 6. Catches: the first listed wins a tie, disk claims charged as they are listed."""
    nodes = []
    for node in world.fleet.nodes:
        gpus = node.facts.gpus
        if gpus is not None:
            cards = list(gpus)
            random.shuffle(cards)
            gpus = tuple(cards)
        nodes.append(replace(node, facts=replace(node.facts, gpus=gpus)))
    random.shuffle(nodes)
    allocations = list(world.fleet.allocations)
    random.shuffle(allocations)
    other = Fleet(nodes=tuple(nodes), allocations=tuple(allocations))
    assert as_bytes(plan(world.catalog, other)) == as_bytes(plan(world.catalog, world.fleet))


@proven
@given(strategies.singles, st.data())
def test_a_node_more_or_a_card_healed_never_turns_a_yes_into_a_no(
    world: strategies.World, data: st.DataObject
) -> None:
    """Property 7. Catches: a fabric that must have exactly as many nodes as asked."""
    catalog, fleet = world.catalog, world.fleet
    (before,) = plan(catalog, fleet)
    again = [strategies.renamed(node, "new") for node in fleet.nodes]
    new = data.draw(st.sampled_from([*again, data.draw(strategies.nodes("new"))]))
    (with_one_more,) = plan(catalog, replace(fleet, nodes=(*fleet.nodes, new)))
    healed = []
    for node in fleet.nodes:
        gpus = tuple(
            replace(gpu, healthy=True, foreign_processes=0) if data.draw(st.booleans()) else gpu
            for gpu in node.facts.gpus or ()
        )
        known = node.facts.gpus is not None
        healed.append(replace(node, facts=replace(node.facts, gpus=gpus)) if known else node)
    (with_healed,) = plan(catalog, replace(fleet, nodes=tuple(healed)))
    if before.outcome is Outcome.PLACED:
        assert with_one_more.outcome is Outcome.PLACED
        assert with_healed.outcome is Outcome.PLACED
    assert with_one_more.outcome is Outcome.KEPT or before.outcome is not Outcome.KEPT


@proven
@given(strategies.worlds)
def test_an_untouched_node_is_opened_only_if_no_used_one_does_as_well(
    world: strategies.World,
) -> None:
    """Property 8. Catches: an untouched node opened first."""
    for seen, decision, profile in replayed(world, plan(world.catalog, world.fleet)):
        if profile.nodes > 1 or not profile.gpus_per_node:
            continue
        chosen = node_of(seen, decision.shards[0].node)
        spans, untouched, *_ = rank_for_gpus(seen, profile, chosen)
        for other in seen.nodes:
            if not untouched or reasons_against(seen, profile, other):
                continue
            other_spans, other_untouched, *_ = rank_for_gpus(seen, profile, other)
            assert other_untouched or other_spans > spans


@proven
@given(strategies.worlds)
def test_a_group_is_in_one_known_nvlink_domain_if_its_node_has_one(
    world: strategies.World,
) -> None:
    """Property 9. Catches: the lowest free indices taken whatever the domains."""
    for seen, decision, profile in replayed(world, plan(world.catalog, world.fleet)):
        for shard in decision.shards:
            node = node_of(seen, shard.node)
            free = free_of_class(seen, profile, node)
            usable = [gpu for gpu in free if large_enough(profile, gpu)]
            assert all(is_free(seen, node, gpu) for gpu in usable)
            if any(len(gpus) >= profile.gpus_per_node > 0 for gpus in domains_of(usable).values()):
                domains = {gpu.nvlink_domain for gpu in cards_of(node, shard.gpus)}
                assert len(domains) == 1
                assert domains != {None}


@proven
@given(strategies.worlds)
def test_a_lower_profile_is_used_only_when_every_higher_one_is_refused(
    world: strategies.World,
) -> None:
    """Property 10. Catches: profiles tried in ascending priority."""
    models = {model.name: model for model in world.catalog.models}
    for decision in plan(world.catalog, world.fleet):
        if decision.outcome is Outcome.KEPT:
            assert tuple(decision.tried) == ()
            continue
        wanted = sorted(models[decision.model].profiles, key=lambda one: -one.priority)
        tried = [one.profile for one in decision.tried]
        assert tried == [one.name for one in wanted][: len(tried)]
        if decision.outcome is Outcome.PLACED:
            assert tried[-1] == decision.profile
            assert [one.fits for one in decision.tried] == [False] * (len(tried) - 1) + [True]
        else:
            assert len(tried) == len(wanted)
        for one in decision.tried:
            assert one.fits or len(one.rejected) == one.considered


@pytest.mark.parametrize("kind", list(strategies.KINDS))
@proven
@given(st.data())
def test_the_naive_twin_decides_the_same_with_the_same_counts_and_reasons(
    kind: str, data: st.DataObject
) -> None:
    """Property 11. Catches: scarcity left out of the rank, claims of lost replicas forgotten."""
    world = data.draw(strategies.KINDS[kind])
    real = plan(world.catalog, world.fleet)
    naive = naive_plan(world.catalog, world.fleet)
    for one, other in zip(real, naive, strict=True):
        assert told(one) == other


def is_kept(world: strategies.World, decision: Decision) -> bool:
    model = next(one for one in world.catalog.models if one.name == decision.model)
    return any(
        one.state is AllocationState.HELD and belongs(one, model, decision.replica)
        for one in world.fleet.allocations
    )


@proven
@given(strategies.worlds)
def test_the_order_is_kept_ones_first_then_priority_and_every_replica_answers_once(
    world: strategies.World,
) -> None:
    """Property 6. Catches: a replica with a `stopping` allocation called kept."""
    decisions = plan(world.catalog, world.fleet)
    wanted = [(m.name, index) for m in world.catalog.models for index in range(m.replicas)]
    assert [(one.model, one.replica) for one in decisions] == wanted
    assert sorted(one.order for one in decisions) == list(range(1, len(decisions) + 1))
    for one in decisions:
        assert (one.outcome is Outcome.KEPT) == is_kept(world, one)
    in_order = sorted(decisions, key=lambda one: one.order)
    kept = [one.outcome is Outcome.KEPT for one in in_order]
    assert kept == sorted(kept, reverse=True)
    priority = {model.name: model.priority for model in world.catalog.models}
    waiting = [priority[one.model] for one in in_order if one.outcome is not Outcome.KEPT]
    assert waiting == sorted(waiting, reverse=True)
