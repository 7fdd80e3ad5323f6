import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.reconcile.routing import (
    FAILURES_TO_EJECT,
    FIRST_EJECTION_S,
    HEALTHY,
    LONGEST_EJECTION_S,
    Health,
    Version,
    first_for,
    less_loaded_of_two,
    reason_to_ignore,
)

loads = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(loads, st.integers())
def test_the_choice_is_one_of_them_and_the_same_for_the_same_luck(
    some: list[float], seed: int
) -> None:
    chosen = less_loaded_of_two(some, random.Random(seed))
    assert 0 <= chosen < len(some)
    assert chosen == less_loaded_of_two(some, random.Random(seed))


@given(loads, st.integers())
def test_the_one_that_is_busier_than_all_others_is_never_chosen(
    some: list[float], seed: int
) -> None:
    busiest = [*some, 10]
    assert less_loaded_of_two(busiest, random.Random(seed)) != len(some)


names = st.lists(st.text("abc-0", min_size=1), min_size=1, max_size=8, unique=True)


@given(st.binary(max_size=100), names, st.randoms())
def test_a_session_stays_with_its_replica_in_whatever_order_they_are_listed(
    session: bytes, replicas: list[str], rng: random.Random
) -> None:
    chosen = replicas[first_for(session, replicas)]
    shuffled = rng.sample(replicas, len(replicas))
    assert shuffled[first_for(session, shuffled)] == chosen


@given(st.binary(max_size=64), names)
def test_a_replica_that_goes_moves_no_sessions_but_its_own(
    session: bytes, replicas: list[str]
) -> None:
    chosen = replicas[first_for(session, replicas)]
    for gone in replicas:
        left = [name for name in replicas if name != gone]
        if left and gone != chosen:
            assert left[first_for(session, left)] == chosen


def test_sessions_spread_over_the_replicas() -> None:
    replicas = [f"m-{index}" for index in range(4)]
    counts = Counter(first_for(b"session %d" % number, replicas) for number in range(4000))
    assert all(850 <= counts[index] <= 1150 for index in range(4)), counts


def test_of_two_the_less_loaded_is_always_chosen() -> None:
    rng = random.Random(1)
    assert {less_loaded_of_two([3, 2], rng) for _ in range(100)} == {1}
    assert {less_loaded_of_two([2, 3], rng) for _ in range(100)} == {0}


def test_equals_share_the_load() -> None:
    rng = random.Random(2)
    counts = Counter(less_loaded_of_two([1, 1, 1, 1], rng) for _ in range(4000))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 800


def failed(health: Health, times: int, now: float) -> Health:
    for _ in range(times):
        health = health.failed(now)
    return health


def test_a_replica_is_left_alone_after_failures_in_a_row() -> None:
    nearly = failed(HEALTHY, FAILURES_TO_EJECT - 1, 0)
    assert nearly.takes(0)
    assert nearly.answered() == HEALTHY
    ejected = nearly.failed(0)
    assert not ejected.takes(FIRST_EJECTION_S / 2)
    assert ejected.takes(FIRST_EJECTION_S)


def test_one_request_probes_it_and_the_others_stay_away() -> None:
    probing = failed(HEALTHY, FAILURES_TO_EJECT, 0).sent()
    assert not probing.takes(100)
    assert probing.answered() == HEALTHY
    assert probing.let_go().takes(100)


def test_each_ejection_is_twice_as_long_up_to_a_bound() -> None:
    health, now, lengths = failed(HEALTHY, FAILURES_TO_EJECT, 0.0), 0.0, []
    for _ in range(8):
        assert health.until is not None
        lengths.append(health.until - now)
        now = health.until
        health = health.sent().failed(now)
    assert lengths[:5] == [1, 2, 4, 8, 16]
    assert set(lengths[5:]) == {LONGEST_EJECTION_S}


def test_failures_of_requests_from_before_an_ejection_do_not_lengthen_it() -> None:
    ejected = failed(HEALTHY, FAILURES_TO_EJECT, 0)
    later = failed(ejected, 50, 0.5)
    assert (later.until, later.ejections) == (ejected.until, 1)


def test_a_replica_whose_route_is_of_another_time_is_tried_again_after_a_while() -> None:
    dropped = HEALTHY.dropped(0)
    assert not dropped.takes(LONGEST_EJECTION_S - 1)
    assert dropped.takes(LONGEST_EJECTION_S)


def version(fleet: str = "a", incarnation: int = 2, epoch: int = 5, revision: int = 7) -> Version:
    return Version(fleet=fleet, incarnation=incarnation, epoch=epoch, revision=revision)


CURRENT = version()


@pytest.mark.parametrize(
    ("offered", "adopting", "taken"),
    [
        (version(revision=8), False, True),
        (version(), False, True),
        (version(revision=6), False, False),
        (version(epoch=6, revision=1), False, True),
        (version(epoch=4, revision=99), False, False),
        (version(revision=8), True, True),
        (version(incarnation=3, epoch=1, revision=1), False, True),
        (version(incarnation=3, epoch=1, revision=1), True, False),
        (version(incarnation=1, epoch=9, revision=9), False, False),
        (version(fleet="b", incarnation=1, epoch=1, revision=1), False, True),
        (version(fleet="b", incarnation=9, epoch=9, revision=9), True, False),
    ],
)
def test_which_snapshot_is_routed_by(offered: Version, adopting: bool, taken: bool) -> None:
    reason = reason_to_ignore(offered, adopting=adopting, current=CURRENT)
    assert (reason is None) == taken
    assert reason_to_ignore(offered, adopting=adopting, current=None) is None
