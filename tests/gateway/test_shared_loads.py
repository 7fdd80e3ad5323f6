"""What workers share: columns, rows, slots, and the sockets they take connections from."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.gateway.columns import Columns
from roost.gateway.shared_loads import Board, Share
from roost.gateway.workers.slots import Hand, share_out


@pytest.fixture
def board() -> Iterator[Board]:
    it = Board.make(3)
    yield it
    os.close(it.fd)


def share(board: Board, row: int) -> Share:
    return Share(board, row, (0, 0, 0))


def test_no_more_are_claimed_than_there_are_slots_whoever_claims(board: Board) -> None:
    one, two = share(board, 0), share(board, 1)
    assert [one.claim(7, 3), two.claim(7, 3), two.claim(7, 3)] == [True, True, True]
    assert not one.claim(7, 3)
    assert not two.claim(7, 3)
    assert one.claim(8, 3)
    two.free(7)
    assert one.load(7) == two.load(7) == 2
    assert one.claim(7, 3)
    assert all(one.claim(9, None) for _ in range(50))


def test_processes_that_claim_at_once_never_get_more_than_there_is(board: Board) -> None:
    # Locks of the kernel's are a process's, so these are processes.
    reading, writing = os.pipe()
    gate, opened = os.pipe()
    children = []
    for row in range(3):
        child = os.fork()
        if child == 0:
            try:
                os.close(opened)
                os.read(gate, 1)  # until all are there
                mine = Share(Board(board.fd, 3), row, (0, 0, 0))
                got = [mine.claim(5, 100) for _ in range(90)].count(True)
                os.write(writing, bytes([got]))
            finally:
                os._exit(0)
        children.append(child)
    os.close(gate)
    os.close(opened)
    for child in children:
        os.waitpid(child, 0)
    os.close(writing)
    counts = os.read(reading, 100)
    os.close(reading)
    assert board.load(5) == sum(counts)
    # A lock that was not got in time counts as "no room", so it may be less; never more.
    assert len(counts) == 3
    assert 90 <= sum(counts) <= 100


def test_what_a_worker_held_can_be_taken_out_and_the_others_stays(board: Board) -> None:
    one, two = share(board, 0), share(board, 1)
    for _ in range(3):
        one.claim(1, None)
    one.claim(2, None)
    two.claim(1, None)
    assert one.may_wait(4, 10, 5.0)
    assert two.may_wait(4, 10, 6.0)
    assert board.clear(0, replicas=iter([1, 2]), models=iter([4])) == 4
    assert (board.load(1), board.load(2), board.waits(4)) == (1, 0, 1)
    two.beat()
    assert share(board, 2).first_other(4, float("inf")) == 1
    assert two.first_other(4, float("inf")) is None


def test_who_has_waited_longest_is_seen_by_the_others_unless_it_stands_still(board: Board) -> None:
    one, two, three = (share(board, row) for row in range(3))
    one.beat()
    two.beat()
    assert one.may_wait(0, 10, 3.0)
    assert two.may_wait(0, 10, 2.0)
    assert three.first_other(0, float("inf")) == 1
    assert three.first_other(0, 2.0) is None
    assert two.first_other(0, float("inf")) == 0
    assert two.first_other(0, 2.0) is None  # its own came first
    board.beats[1] = 1.0  # long ago
    assert three.first_other(0, float("inf")) == 0
    one.publish(0, 0, 0.0)
    assert three.first_other(0, float("inf")) is None


def test_a_lock_that_another_process_does_not_let_go_of_is_no_room(board: Board) -> None:
    reading, writing = os.pipe()
    done, finish = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            import fcntl

            os.close(finish)
            fcntl.lockf(board.fd, fcntl.LOCK_EX, 1, 6)
            os.write(writing, b"!")
            os.read(done, 1)
        finally:
            os._exit(0)
    os.close(done)
    try:
        os.read(reading, 1)
        mine = share(board, 0)
        assert not mine.claim(6, 4)
        assert mine.claim(7, 4)
        assert mine.claim(6, 100)  # far from full, nobody has to be kept out
    finally:
        os.close(finish)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
    # The kernel lets go of it with the process.
    assert share(board, 0).claim(6, 4)


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 5))), min_size=1, max_size=12
    )
)
def test_a_column_is_one_owners_and_stays_its_own(steps: list[tuple[set[int], set[int]]]) -> None:
    busy: set[int] = set()
    columns: Columns[int] = Columns(6, lambda column: column not in busy)
    before: dict[int, int | None] = {}
    held: dict[int, int] = {}
    for owners, now_busy in steps:
        order = sorted(owners)
        now = dict(zip(order, columns.assign(order), strict=True))
        given_out = [column for column in now.values() if column is not None]
        assert len(set(given_out)) == len(given_out)
        assert all(0 <= column < 6 for column in given_out)
        for owner in now.keys() & before.keys():
            assert before[owner] is None or now[owner] == before[owner]
        # What is still held by an owner that is gone is nobody else's.
        for owner, column in held.items():
            assert column not in {c for o, c in now.items() if o != owner}
        assert set(given_out) <= set(columns.used())
        busy = now_busy & set(columns.used())
        owned = {c: o for o, c in now.items() if c is not None} | {c: o for o, c in held.items()}
        held = {owned[column]: column for column in busy if column in owned}
        before = now


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.floats(0, 9)), max_size=9))
def test_every_slot_has_one_hand_the_newest_where_it_belongs(
    slots: int, there: list[tuple[int, float]]
) -> None:
    hands = [
        Hand(row=row, slot=slot % slots, started=started)
        for row, (slot, started) in enumerate(there)
    ]
    taken = share_out(slots, hands)
    assert set(taken) == {hand.row for hand in hands}
    out = sorted(slot for mine in taken.values() for slot in mine)
    assert out == (list(range(slots)) if hands else [])
    for hand in hands:
        newest = max(h.started for h in hands if h.slot == hand.slot)
        if hand.started < newest:
            assert taken[hand.row] == []
        elif [h.started for h in hands if h.slot == hand.slot].count(newest) == 1:
            assert hand.slot in taken[hand.row]
    serving = [len(mine) for mine in taken.values() if mine]
    if serving:
        assert max(serving) - min(serving) <= 1
