"""Which faults can be ordered of a node, and what is said of those that can't."""

from dataclasses import replace

import pytest

from roost.errors import Unusable
from roost.testing.faults import Fault, Kind, checked
from testing.made_up import node


def fault(kind: Kind, gpu: int | None = None, replica: str | None = None) -> Fault:
    return Fault(node="a", kind=kind, gpu=gpu, replica=replica)


@pytest.mark.parametrize("kind", [Kind.ECC, Kind.OFF_BUS, Kind.FOREIGN])
def test_the_only_card_need_not_be_named(kind: Kind) -> None:
    facts = node("a", gpus=1).facts
    assert str(checked(fault(kind), facts, ())) == f"a {kind} --gpu 0"


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.CRASH_LOOP, Kind.HANG])
def test_the_only_engine_need_not_be_named(kind: Kind) -> None:
    facts = node("a").facts
    assert str(checked(fault(kind), facts, ("small-0",))) == f"a {kind} --replica small-0"


@pytest.mark.parametrize(
    ("asked", "gpus", "replicas", "says"),
    [
        (fault(Kind.ECC), 0, (), "a has no GPU: choose another node"),
        (fault(Kind.ECC), 8, (), "a has GPUs 0 to 7: name one with --gpu"),
        (fault(Kind.ECC, gpu=8), 8, (), "a has no GPU 8: it has 0 to 7"),
        (fault(Kind.ECC, gpu=3), 1, (), "a has no GPU 3: it has 0"),
        (fault(Kind.ECC, gpu=0, replica="x"), 1, ("x",), "ecc is no fault of an engine"),
        (fault(Kind.SILENT, gpu=0), 1, (), "silent is no fault of a card: leave out --gpu"),
        (fault(Kind.OFF, replica="x"), 1, ("x",), "off is no fault of an engine"),
        (fault(Kind.HANG), 1, (), "a runs no engine now"),
        (fault(Kind.HANG), 1, ("y", "x"), "a runs x, y: name one with --replica"),
        (fault(Kind.HANG, replica="z"), 1, ("y", "x"), "a does not run z: it runs x, y"),
        (fault(Kind.CRASH, gpu=0), 1, ("x",), "crash is no fault of a card"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_what_there_is(
    asked: Fault, gpus: int, replicas: tuple[str, ...], says: str
) -> None:
    with pytest.raises(Unusable) as refused:
        checked(asked, node("a", gpus=gpus).facts, replicas)
    assert refused.value.message.startswith(says)


def test_cards_that_are_not_reported_and_not_numbered_in_a_row_are_said_as_that() -> None:
    facts = node("a", gpus=3).facts
    with pytest.raises(Unusable, match="a does not report its GPUs: choose another node"):
        checked(fault(Kind.ECC), replace(facts, gpus=None), ())
    assert facts.gpus is not None
    gap = replace(facts, gpus=(facts.gpus[0], facts.gpus[2]))
    with pytest.raises(Unusable, match="a has GPUs 0, 2: name one with --gpu"):
        checked(fault(Kind.ECC), gap, ())
