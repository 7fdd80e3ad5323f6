"""SQLite: its connections, its transactions, and its refusals as Roost's own errors."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from roost.errors import Conflict, NoSpace, RoostError, Unavailable
from roost.store.database import Database

_BUSY_TIMEOUT_MS = 15_000


class Sqlite(Database):
    """A file in WAL mode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._writing = asyncio.Lock()
        self._writer = _engine(path, begin="BEGIN IMMEDIATE", size=1)
        self._readers = _engine(path, begin="BEGIN", size=2)

    @asynccontextmanager
    async def write(self, *, limit_s: float | None = None) -> AsyncIterator[AsyncConnection]:  # noqa: ARG002 - a file answers
        """A transaction that holds the write lock from its start; all of it is kept, or nothing."""
        async with self._writing:
            with _as_roost_errors(self.path):
                async with self._writer.begin() as connection:
                    yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A consistent view."""
        with _as_roost_errors(self.path):
            async with self._readers.begin() as connection:
                yield connection

    def migration(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction like any other: the file's lock is everybody's."""
        return self.write()

    async def close(self) -> None:
        """Close every connection."""
        await self._readers.dispose()
        await self._writer.dispose()


def create_private(path: Path) -> None:
    """Make the file, readable by its owner only, before SQLite would make it readable by all."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _engine(path: Path, *, begin: str, size: int) -> AsyncEngine:
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{path}",
        poolclass=AsyncAdaptedQueuePool,
        pool_size=size,
        max_overflow=0,
        pool_reset_on_return="rollback",
    )

    # The driver's own BEGIN comes late and is never IMMEDIATE: it is off, and ours is said.
    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={_BUSY_TIMEOUT_MS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def say_begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", connect)
    event.listen(engine.sync_engine, "begin", say_begin)
    return engine


@contextmanager
def _as_roost_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _translated(error, path) from error


def _translated(error: DBAPIError, path: Path) -> RoostError:
    code = getattr(error.orig, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if isinstance(error, IntegrityError):
        return Conflict(f"the change contradicts what is stored: {error.orig}")
    if primary in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        return NoSpace(
            f"the filesystem of {path} has no room for the change; nothing was changed",
            hint=f"free space on it: df -h {path.parent}",
        )
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Unavailable(f"{path} is locked by another program for {_BUSY_TIMEOUT_MS // 1000} s")
    if primary in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return Unavailable(f"{path} cannot be written: {error.orig}")
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return Unavailable(f"{path} is damaged: {error.orig}")
    return Unavailable(f"the database refused: {error.orig}")
