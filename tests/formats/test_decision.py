"""Decisions as JSON: the keys and their order, the schema, and back."""

import json

import jsonschema
from hypothesis import given, settings

import strategies
from roost.domain.model import Catalog
from roost.formats.decision import decisions_from_json, decisions_schema, decisions_to_json
from roost.formats.fleet import parse_fleet
from roost.placement import plan
from roost.placement.explain import explain


@settings(max_examples=150, deadline=None)
@given(strategies.worlds)
def test_what_is_written_is_the_format_and_is_read_back(world: strategies.World) -> None:
    decisions = plan(world.catalog, world.fleet)
    written = decisions_to_json(decisions)
    jsonschema.validate(json.loads(json.dumps(written)), decisions_schema())
    again = decisions_from_json(json.loads(json.dumps(written)))
    assert decisions_to_json(again) == written
    assert explain(again, all_nodes=True) == explain(decisions, all_nodes=True)


@settings(max_examples=150, deadline=None)
@given(strategies.worlds)
def test_the_keys_are_those_of_the_format_in_its_order(world: strategies.World) -> None:
    for brief in (False, True):
        for one in decisions_to_json(plan(world.catalog, world.fleet), brief=brief)["decisions"]:
            keys = ["model", "replica", "order", "outcome", "profile", "fabric", "shards", "why"]
            if one["outcome"] != "kept":
                keys.append("tried")
            if one["outcome"] == "unplaceable":
                keys.append("would_fit_if")
            assert list(one) == keys
            for shard in one["shards"]:
                assert list(shard) == ["rank", "node", "gpus", "gpu_uuids", "hcas"]
            for tried in one.get("tried", ()):
                named = ["profile", "outcome", "considered", "fit", "counts", "rejected", "fabrics"]
                assert list(tried) == [key for key in named if not (brief and key == "rejected")]
                for rejection in tried.get("rejected", ()):
                    assert list(rejection) == ["node", "reasons"]
                    for reason in rejection["reasons"]:
                        assert list(reason) == ["code", "has", "needs", "unit", "message"]
            for remedy in one.get("would_fit_if", ()):
                assert next(iter(remedy)) == "change"
                assert list(remedy)[-1] == "message"
                assert None not in remedy.values()


def test_an_empty_plan_is_an_empty_list() -> None:
    fleet = parse_fleet("nodes: []", filename="f").fleet
    assert decisions_to_json(plan(Catalog(), fleet)) == {"decisions": []}
