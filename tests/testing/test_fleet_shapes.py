"""Fleets that are made up are read as fleets, and are the same for the same seed."""

import json

import pytest
from click.testing import CliRunner

from roost.formats.fleet import parse_fleet
from roost.run.fleet import fleet
from roost.testing.fleet_shapes import SHAPES, make_fleet


def generated(*words: str) -> str:
    result = CliRunner().invoke(fleet, ["generate", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_printed_is_read_back_as_it_was_made_and_without_a_warning(shape: str) -> None:
    text = generated("--nodes", "60", "--shape", shape, "--seed", "7")
    parsed = parse_fleet(text, filename="fleet.json")
    assert parsed.warnings == ()
    assert parsed.fleet.nodes == make_fleet(shape, 60, 7).nodes
    assert len({node.name for node in parsed.fleet.nodes}) == 60


def test_a_seed_decides_the_fleet() -> None:
    assert generated("--nodes", "50") == generated("--nodes", "50", "--seed", "0")
    assert make_fleet("mixed", 50, 1) != make_fleet("mixed", 50, 2)


def test_a_large_mixed_fleet_has_ill_cards_foreign_processes_and_facts_that_are_not_reported() -> (
    None
):
    nodes = make_fleet("mixed", 500, 0).nodes
    gpus = [gpu for node in nodes for gpu in node.facts.gpus or ()]
    assert any(gpu.healthy is False and gpu.unhealthy_reason for gpu in gpus)
    assert any(gpu.foreign_processes for gpu in gpus)
    for fact in ("memory_bytes", "engines", "gpus", "fabrics", "storage"):
        assert any(getattr(node.facts, fact) is None for node in nodes), fact
    assert {gpu.gpu_class for gpu in gpus} == {"h100-80gb-hbm3", "a100-sxm4-80gb", "l40s"}
    fabrics = [one.name for node in nodes for one in node.facts.fabrics or ()]
    assert max(fabrics.count(name) for name in fabrics) <= 32
    assert len(set(fabrics)) > 2


def test_no_nodes_and_an_unknown_shape_are_refused() -> None:
    for words in (["--nodes", "0"], ["--nodes", "5", "--shape", "moon"], []):
        assert CliRunner().invoke(fleet, ["generate", *words]).exit_code == 2
    assert json.loads(generated("--nodes", "1"))["allocations"] == []
