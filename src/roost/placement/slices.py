"""Where is a number least or most: a number for every node, kept as a set of nodes a binary digit.

Digit `j` is the set of the nodes whose number has bit `j`. Narrowing a set of nodes to those with
the least number is one AND a digit, whatever the numbers are, and changing one node's number flips
its bit in the digits that differ. No last digit is empty, so equal numbers are equal tuples.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from roost.placement import bits

Slices: TypeAlias = tuple[int, ...]


def least(slices: Slices, among: int) -> int:
    """Those of `among` whose number is least."""
    for digit in reversed(slices):
        ones = among & digit
        if ones != among:
            among ^= ones
    return among


def most(slices: Slices, among: int) -> int:
    """Those of `among` whose number is greatest."""
    for digit in reversed(slices):
        ones = among & digit
        if ones:
            among = ones
    return among


def at(slices: Slices, place: int) -> int:
    """The number of one node."""
    return sum(1 << j for j, digit in enumerate(slices) if digit >> place & 1)


def changed(slices: Slices, place: int, old: int, new: int) -> Slices:
    """The same numbers, but `new` instead of `old` for one node."""
    differ = old ^ new
    if not differ:
        return slices
    digits = list(slices)
    bit = 1 << place
    while differ:
        j = (differ & -differ).bit_length() - 1
        differ &= differ - 1
        while j >= len(digits):
            digits.append(0)
        digits[j] ^= bit
    return _trimmed(digits)


def gathered(groups: Mapping[int, Iterable[int]], size: int) -> Slices:
    """From the nodes, numbered below `size`, that have each number."""
    members: list[list[int]] = [
        [] for _ in range(max((number.bit_length() for number in groups), default=0))
    ]
    for number, nodes in groups.items():
        for j in bits.members(number):
            members[j].extend(nodes)
    return _trimmed([bits.gathered(nodes, size) for nodes in members])


def summed(amounts: Iterable[tuple[int, int]]) -> Slices:
    """For each node the sum of the amounts (nodes, amount) whose nodes it is among."""
    # A ripple-carry adder that adds for all nodes at once.
    digits: list[int] = []
    for nodes, amount in amounts:
        for j in range(amount.bit_length()):
            if not amount >> j & 1:
                continue
            carry, k = nodes, j
            while carry:
                while k >= len(digits):
                    digits.append(0)
                digits[k], carry = digits[k] ^ carry, digits[k] & carry
                k += 1
    return _trimmed(digits)


def ranked(slices: Slices, among: int) -> Slices:
    """The ranks of the numbers instead of the numbers: the same order in fewer digits."""
    groups = [among] if among else []
    for digit in reversed(slices):
        groups = [group for nodes in groups for group in (nodes & ~digit, nodes & digit) if group]
    digits = [0] * (len(groups) - 1).bit_length()
    for rank, nodes in enumerate(groups):
        for j in range(rank.bit_length()):
            if rank >> j & 1:
                digits[j] |= nodes
    return _trimmed(digits)


def _trimmed(digits: list[int]) -> Slices:
    while digits and not digits[-1]:
        digits.pop()
    return tuple(digits)
