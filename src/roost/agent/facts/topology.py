"""Which GPUs of a node reach each other by NVLink: the connected components of what is known."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roost.agent.facts.card import MOST_CARDS, SWITCH, Card

MOST_CHARACTERS: Final = 4_000_000
_ESCAPES: Final = re.compile(r"\x1b?\[[0-9;]*m")
_GPU: Final = re.compile(r"GPU(\d{1,4})")
_LINKED: Final = re.compile(r"NV\d{1,3}")
_NOT_LINKED: Final = frozenset({"SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "SOC"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What `nvidia-smi topo -m` says of each pair of GPUs; a pair that is absent is not known."""

    pairs: Mapping[tuple[int, int], bool]
    """By index, the lower one first: linked by NVLink or known not to be."""
    gpus: frozenset[int]


def parse_matrix(text: str) -> Matrix | None:
    """The table that `nvidia-smi topo -m` printed; None: there is none in the text."""
    columns: list[int | None] = []
    pairs: dict[tuple[int, int], bool] = {}
    seen: set[int] = set()
    for raw in _ESCAPES.sub("", text[:MOST_CHARACTERS]).splitlines():
        words = raw.split()
        if not words or (first := _GPU.fullmatch(words[0])) is None:
            continue
        if not columns:
            # The header has the GPUs first, then NICs and affinities.
            columns = [int(m[1]) if (m := _GPU.fullmatch(word)) else None for word in words]
            columns = columns[: columns.index(None)] if None in columns else columns
            if len(columns) > MOST_CARDS or len(set(columns)) < len(columns):
                return None
            continue
        row = int(first[1])
        if row not in columns or row in seen:
            continue
        seen.add(row)
        for column, cell in zip(columns, words[1:], strict=False):
            if column is None or column == row:
                continue
            if _LINKED.fullmatch(cell):
                pairs[min(row, column), max(row, column)] = True
            elif cell in _NOT_LINKED:
                pairs.setdefault((min(row, column), max(row, column)), False)
    return Matrix(pairs=pairs, gpus=frozenset(seen)) if seen else None


def domains(cards: Sequence[Card], matrix: Matrix | None = None) -> tuple[int | None, ...]:
    """Each card's NVLink domain, numbered from 0 in the order of the cards; None: not known.

    The matrix where there is one, else the card's own links, and the fabric it is registered in. A
    card without links is a domain of its own; of one that doesn't say, nothing is known unless
    another card's link ends at it.
    """
    by_address = {card.pci_address: place for place, card in enumerate(cards) if card.pci_address}
    by_index = {card.index: place for place, card in enumerate(cards)}
    silent: set[int] = set()
    edges: list[tuple[int | str, int | str]] = []
    for place, card in enumerate(cards):
        known = card.evidence.lost is None and (
            _by_matrix(card, matrix, by_index, edges, place)
            or _by_links(card, by_address, edges, place)
        )
        if card.clique is not None and card.evidence.lost is None:
            edges.append((place, card.clique))
            known = True
        if not known:
            silent.add(place)
    return _numbered(len(cards), edges, silent)


def _by_matrix(
    card: Card,
    matrix: Matrix | None,
    by_index: Mapping[int, int],
    edges: list[tuple[int | str, int | str]],
    place: int,
) -> bool:
    if matrix is None or card.index not in matrix.gpus:
        return False
    whole = True
    for other, there in by_index.items():
        if other == card.index:
            continue
        linked = matrix.pairs.get((min(card.index, other), max(card.index, other)))
        whole &= linked is not None
        if linked:
            edges.append((place, there))
    return whole


def _by_links(
    card: Card,
    by_address: Mapping[str, int],
    edges: list[tuple[int | str, int | str]],
    place: int,
) -> bool:
    if card.nvlinks is None:
        return False
    ends: set[int | str] = set()
    for peer in card.nvlinks:
        if peer == SWITCH:
            ends.add(SWITCH)
        elif peer in by_address:
            ends.add(by_address[peer])
    edges.extend((place, end) for end in ends)
    # Links that all end outside of what is listed tell nothing of those listed.
    return bool(ends) or not card.nvlinks


def _numbered(
    count: int, edges: Iterable[tuple[int | str, int | str]], silent: set[int]
) -> tuple[int | None, ...]:
    parent: dict[int | str, int | str] = {}

    def root(node: int | str) -> int | str:
        while (above := parent.setdefault(node, node)) != node:
            parent[node] = parent[above]
            node = above
        return node

    linked: set[int | str] = set()
    for one, other in edges:
        linked |= {one, other}
        parent[root(one)] = root(other)
    numbers: dict[int | str, int] = {}
    found: list[int | None] = []
    for place in range(count):
        if place in silent and place not in linked:
            found.append(None)
        else:
            found.append(numbers.setdefault(root(place), len(numbers)))
    return tuple(found)
