from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.domain.node import Facts, NodeName
from roost.reconcile.nodes import (
    MISSING,
    LeaseRules,
    NodeStatus,
    judge,
    report_interval_s,
    with_missing_gpus,
)

RULES = LeaseRules()
READY, NOT_READY, LOST = NodeStatus.READY, NodeStatus.NOT_READY, NodeStatus.LOST


def names(**silent_s: float) -> dict[NodeName, float]:
    return {NodeName(name): silence for name, silence in silent_s.items()}


@pytest.mark.parametrize(
    ("silent_s", "status"),
    [(0, READY), (19.9, READY), (20, NOT_READY), (59.9, NOT_READY), (60, LOST), (1e6, LOST)],
)
def test_a_node_is_not_ready_after_four_missed_reports_and_lost_after_a_minute(
    silent_s: float, status: NodeStatus
) -> None:
    assert judge(names(a=silent_s), {}, RULES).status == {"a": status}


def test_a_lost_node_that_reports_is_ready_at_once() -> None:
    assert judge(names(a=0), {NodeName("a"): LOST}, RULES).status == {"a": READY}


def test_a_lost_node_that_was_heard_and_fell_silent_again_stays_lost_until_it_reports() -> None:
    assert judge(names(a=30), {NodeName("a"): LOST}, RULES).status == {"a": LOST}


def test_most_of_a_fleet_falling_silent_at_once_loses_nobody_and_says_who_waits() -> None:
    judged = judge(names(a=70, b=70, c=65, d=0), {}, RULES)
    assert judged.status == {"a": NOT_READY, "b": NOT_READY, "c": NOT_READY, "d": READY}
    assert judged.held_back == {"a", "b", "c"}


def test_nodes_that_vanish_a_little_after_one_another_are_still_one_event() -> None:
    judged = judge(names(a=61, b=45, c=30, d=0), {}, RULES)
    assert LOST not in judged.status.values()
    assert judged.held_back == {"a"}


def test_half_of_a_fleet_is_believed_to_be_gone() -> None:
    judged = judge(names(a=70, b=70, c=70, d=0, e=0, f=0), {}, RULES)
    assert [judged.status[NodeName(n)] for n in "abc"] == [LOST] * 3
    assert not judged.held_back


def test_in_a_fleet_of_two_each_node_is_believed_to_be_gone() -> None:
    assert judge(names(a=70, b=70), {}, RULES).status == {"a": LOST, "b": LOST}


def test_nodes_lost_before_are_no_part_of_the_fleet_that_may_vanish() -> None:
    before = {NodeName(n): LOST for n in "abcd"}
    judged = judge(names(a=900, b=900, c=900, d=900, e=70, f=0), before, RULES)
    assert judged.status[NodeName("e")] is LOST


silences = st.dictionaries(
    st.sampled_from([NodeName(n) for n in "abcdef"]), st.sampled_from([0.0, 19, 20, 59, 60, 300])
)
statuses = st.dictionaries(
    st.sampled_from([NodeName(n) for n in "abcdef"]), st.sampled_from(NodeStatus)
)


@given(silences, statuses)
def test_every_node_is_judged_once_and_only_a_long_silence_loses_it(
    silent_s: Mapping[NodeName, float], before: Mapping[NodeName, NodeStatus]
) -> None:
    judged = judge(silent_s, before, RULES)
    assert set(judged.status) == set(silent_s)
    for name, status in judged.status.items():
        assert (status is READY) == (silent_s[name] < 20)
        if status is LOST:
            assert silent_s[name] >= 60 or before.get(name) is LOST
        if silent_s[name] >= 60:
            assert (status is LOST) != (name in judged.held_back)
    again = judge(silent_s, judged.status, RULES)
    if not judged.held_back:
        assert again.status == judged.status


def test_very_large_fleets_report_every_fifteen_seconds_and_others_every_five() -> None:
    assert [report_interval_s(n) for n in (0, 1, 4000, 8000, 12_000, 50_000)] == [
        5,
        5,
        5,
        10,
        15,
        15,
    ]


def gpu(index: int, uuid: str) -> Gpu:
    return Gpu(index=index, gpu_class=GpuClass("h100"), uuid=GpuUuid(uuid), healthy=True)


def test_a_held_card_that_fell_off_the_bus_stays_listed_as_missing_beside_the_one_in_its_place() -> (
    None
):
    before = [gpu(0, "A"), gpu(1, "B"), gpu(2, "C")]
    now = Facts(gpus=(gpu(0, "A"), gpu(1, "C")))
    merged = with_missing_gpus(now, before)
    assert merged.gpus is not None
    assert [(g.index, g.uuid, g.healthy) for g in merged.gpus] == [
        (0, "A", True),
        (1, "C", True),
        (2, "B", False),
    ]
    assert merged.gpus[2].unhealthy_reason == MISSING


def test_nothing_is_invented_for_a_node_that_does_not_report_its_gpus() -> None:
    assert with_missing_gpus(Facts(gpus=None), [gpu(0, "A")]) == Facts(gpus=None)


def test_facts_that_list_every_held_card_stay_as_they_are() -> None:
    facts = Facts(gpus=(gpu(0, "A"),))
    assert with_missing_gpus(facts, [gpu(7, "A")]) == facts
