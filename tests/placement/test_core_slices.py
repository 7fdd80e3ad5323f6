"""Numbers as digits of sets, against a list of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from roost.placement import bits, slices

numbers = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 1 << 40]), min_size=1, max_size=9)


def of(values: list[int]) -> slices.Slices:
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        groups.setdefault(value, []).append(place)
    return slices.gathered(groups, len(values))


@given(numbers, st.data())
def test_the_least_and_the_most_are_those_of_the_list(
    values: list[int], data: st.DataObject
) -> None:
    among = data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1))
    found = of(values)
    chosen = bits.gathered(among, len(values))
    least, most = (pick(values[place] for place in among) for pick in (min, max))
    for narrow, value in ((slices.least, least), (slices.most, most)):
        left = narrow(found, chosen)
        assert set(bits.members(left)) == {place for place in among if values[place] == value}
    assert [slices.at(found, place) for place in range(len(values))] == values
    assert slices.least(found, 0) == slices.most(found, 0) == 0


@given(numbers, st.data())
def test_a_changed_number_is_as_if_it_had_been_so(values: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    new = data.draw(st.sampled_from([0, 1, 7, 1 << 50]))
    after = [new if at == place else value for at, value in enumerate(values)]
    assert slices.changed(of(values), place, values[place], new) == of(after)


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 9)), max_size=6))
def test_sums_are_added_for_all_at_once_and_ranked_in_order(
    amounts: list[tuple[int, int]],
) -> None:
    sums = [sum(n for nodes, n in amounts if nodes >> place & 1) for place in range(6)]
    found = slices.summed(amounts)
    assert [slices.at(found, place) for place in range(6)] == sums
    ranks = slices.ranked(found, 63)
    ascending = sorted(set(sums))
    assert [slices.at(ranks, place) for place in range(6)] == [ascending.index(n) for n in sums]


@given(st.sets(st.integers(0, 200)), st.integers(0, 20))
def test_members_come_ascending(some: set[int], count: int) -> None:
    found = bits.gathered(some, 201)
    assert list(bits.members(found)) == sorted(some)
    assert list(bits.members(bits.first(found, count))) == sorted(some)[:count]
