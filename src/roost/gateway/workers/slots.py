"""Who takes the connections of which listening sockets.

The kernel spreads connections over as many sockets as there are to be workers, the slots. Each is
held open whatever becomes of its worker, so a connection is never refused: it waits for whoever
takes from the slot next.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """A worker that could take connections now; `slot` is where it belongs."""

    row: int
    slot: int
    started: float


def share_out(slots: int, hands: Sequence[Hand]) -> dict[int, list[int]]:
    """The slots of each hand, by row: the newest where it belongs; what nobody has, evenly."""
    taken: dict[int, list[int]] = {hand.row: [] for hand in hands}
    newest: dict[int, Hand] = {}
    for hand in hands:
        there = newest.get(hand.slot)
        if there is None or hand.started > there.started:
            newest[hand.slot] = hand
    for slot, hand in newest.items():
        taken[hand.row].append(slot)
    if newest:
        for slot in range(slots):
            if slot not in newest:
                least = min(newest.values(), key=lambda hand: (len(taken[hand.row]), hand.slot))
                taken[least.row].append(slot)
    return taken
