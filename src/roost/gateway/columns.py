"""Which column of the shared memory is whose: replicas and models keep theirs."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class Columns(Generic[Owner]):
    """Gives out numbers below `count`; one is free again when its owner is gone and it is idle."""

    def __init__(self, count: int, is_idle: Callable[[int], bool]) -> None:
        """`is_idle`: whether nothing is held in a column."""
        self._count = count
        self._is_idle = is_idle
        self._columns: dict[Owner, int] = {}
        self._free: list[int] = []
        self._next = 0

    def assign(self, owners: Iterable[Owner]) -> list[int | None]:
        """The columns of those who are there now; `None`: there are no more columns."""
        there = list(owners)
        for gone in self._columns.keys() - set(there):
            if self._is_idle(self._columns[gone]):
                self._free.append(self._columns.pop(gone))
        return [self._of(owner) for owner in there]

    def used(self) -> Iterator[int]:
        """All that may hold something."""
        return iter(self._columns.values())

    def _of(self, owner: Owner) -> int | None:
        column = self._columns.get(owner)
        if column is not None:
            return column
        if self._free:
            column = self._free.pop()
        elif self._next < self._count:
            column, self._next = self._next, self._next + 1
        else:
            return None
        self._columns[owner] = column
        return column
