"""Which cards of one node go together: NVLink domains as sets of card positions."""

from collections.abc import Iterable

from roost.placement import bits


def span(domains: Iterable[int], unknown: int, free: int) -> int:
    """The most free cards that may be in one domain.

    A group larger than this is *known* not to be in one. Cards whose domain is not reported may be
    in any, so they count with every domain.
    """
    known = max(((domain & free).bit_count() for domain in domains), default=0)
    return known + (unknown & free).bit_count()


def choose(domains: Iterable[int], free: int, usable: int, count: int) -> int:
    """The `count` of the usable cards to take.

    Of the known domains that hold them the one with fewest free cards of the class, lowest
    positions; where none does, the lowest positions.
    """
    best: tuple[int, int] | None = None
    chosen = usable
    for domain in domains:
        here = domain & usable
        if here.bit_count() < count:
            continue
        # Domains are disjoint, so the lowest card tells equal ones apart.
        rank = ((domain & free).bit_count(), here & -here)
        if best is None or rank < best:
            best, chosen = rank, here
    return bits.first(chosen, count)


def touched(domains: Iterable[int], unknown: int, cards: int) -> tuple[int, bool]:
    """How many known domains a group is in, and whether it has cards whose domain is not known."""
    return sum(1 for domain in domains if domain & cards), bool(unknown & cards)
