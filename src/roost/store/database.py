"""What a database is to the store: transactions that are kept whole or not at all."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

from sqlalchemy.ext.asyncio import AsyncConnection

from roost.errors import Unusable


class Database(ABC):
    """One writer at a time, and readers that it doesn't block."""

    name: str
    """What it is called to people; holds no password."""

    @abstractmethod
    def write(
        self, *, limit_s: float | None = None
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction; all of it is kept, or nothing.

        `limit_s`: a database that another machine runs has so long to answer, less than usually.
        Raises `Lost` when the connection broke: in the middle of COMMIT both may be true.
        """

    @abstractmethod
    def read(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A consistent view."""

    @abstractmethod
    def migration(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that takes its time, and that no other server makes at once."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""


def is_url(named: str) -> bool:
    """Whether it is a PostgreSQL's URL; `Unusable`: another kind of URL."""
    scheme, sign, _ = named.partition("://")
    if not sign or "/" in scheme:
        return False
    if scheme not in {"postgresql", "postgres"}:
        raise Unusable(
            f"no database is reached by {scheme[:40]}://",
            hint="postgresql://USER@HOST/DATABASE, or the name of a file for SQLite",
        )
    return True
