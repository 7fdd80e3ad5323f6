"""Which of them: sets of small whole numbers as Python integers, a bit each."""

from collections.abc import Iterable, Iterator
from typing import Final

_IN_BYTE: Final = tuple(tuple(j for j in range(8) if byte >> j & 1) for byte in range(256))


def lowest(bits: int) -> int:
    """The lowest number in a set that is not empty."""
    return (bits & -bits).bit_length() - 1


def members(bits: int) -> Iterator[int]:
    """The numbers of a set, ascending."""
    for base, byte in enumerate(bits.to_bytes((bits.bit_length() + 7) // 8, "little")):
        if byte:
            for bit in _IN_BYTE[byte]:
                yield base * 8 + bit


def first(bits: int, count: int) -> int:
    """The `count` lowest members; all of them where there are fewer."""
    taken = 0
    for _ in range(count):
        if not bits:
            break
        bit = bits & -bits
        taken |= bit
        bits ^= bit
    return taken


def gathered(numbers: Iterable[int], size: int) -> int:
    """The set of these numbers, each below `size`."""
    buffer = bytearray(size // 8 + 1)
    for number in numbers:
        buffer[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(buffer, "little")
