"""PostgreSQL: its connections, its transactions, and its refusals as Roost's own errors."""

import asyncio
import os
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from roost.errors import Conflict, Lost, NoSpace, RoostError, Unavailable, Unusable
from roost.store.database import Database

_CONNECT_S: Final = 5
_SILENCE_S: Final = 10
_STATEMENT_S: Final = 12
_LOCK_S: Final = 10
# What may lie before it, and it, take less than `ctl` waits for an answer.
_TRANSACTION_S: Final = 15.0
_MIGRATION_S: Final = 900.0
# Any number, as long as every version of Roost takes the same.
_MIGRATING: Final = 0x726F6F7374

# What was acknowledged is kept, also where a database is set not to wait for its disk.
_KEPT: Final = """
set_config('synchronous_commit', CASE current_setting('synchronous_commit')
           WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
"""

# The server ends, has crashed, or starts; 25006: what was the primary is a standby now.
_GONE: Final = frozenset({"57P01", "57P02", "57P03", "25006"})


class PostgreSql(Database):
    """A database on a PostgreSQL server, named by a URL as libpq reads it."""

    def __init__(self, url: str, *, limit_s: float = _TRANSACTION_S) -> None:
        """`limit_s`: a transaction that takes longer is cut, whatever it waits for."""
        said = _parsed(url)
        self._secrets = tuple(
            written for word in passwords_in(url) for written in (word, quote(word, safe=""))
        )
        defaults: dict[str, str | int] = {
            "connect_timeout": _CONNECT_S,
            "application_name": "roost",
            "tcp_user_timeout": _SILENCE_S * 1000,
            "keepalives_idle": _SILENCE_S,
            "client_encoding": "UTF8",
        }
        more = {key: value for key, value in defaults.items() if key not in said}
        self._conninfo = make_conninfo(url, **more)
        self.name = _name(said)
        self._limit_s = limit_s
        self._writing = asyncio.Lock()
        self._writers = self._engine()
        self._readers = self._writers.execution_options(isolation_level="REPEATABLE READ")

    @asynccontextmanager
    async def write(self, *, limit_s: float | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction; all of it is kept, or nothing. `Lost`: see `Database`."""
        limit = self._limit_s if limit_s is None else min(limit_s, self._limit_s)
        async with (
            self._writing,
            self._transaction(self._writers, statement_s=_STATEMENT_S, limit_s=limit) as connection,
        ):
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A consistent view."""
        async with self._transaction(
            self._readers, statement_s=_STATEMENT_S, limit_s=self._limit_s
        ) as connection:
            yield connection

    @asynccontextmanager
    async def migration(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that takes its time, under a lock that servers share for it."""
        async with (
            self._writing,
            self._transaction(
                self._writers, statement_s=_MIGRATION_S, limit_s=_MIGRATION_S
            ) as connection,
        ):
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
            yield connection

    async def close(self) -> None:
        """Close every connection."""
        await self._writers.dispose()

    def _engine(self) -> AsyncEngine:
        engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self._connect,
            pool_size=4,
            max_overflow=0,
            pool_timeout=_CONNECT_S,
            use_native_hstore=False,
        )
        event.listen(engine.sync_engine, "before_cursor_execute", _without_nul, retval=True)
        return engine

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # A pooler between here and there does not keep what was prepared.
        return await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None)

    @asynccontextmanager
    async def _transaction(
        self, engine: AsyncEngine, *, statement_s: float, limit_s: float
    ) -> AsyncIterator[AsyncConnection]:
        try:
            connection = await engine.connect()
        except NoConnection:
            raise Unavailable(f"{self.name} is busy: no connection within {_CONNECT_S} s") from None
        except DBAPIError as error:
            raise self._not_reached(error) from None
        try:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            # A server that has stopped answers nothing, not even a request to cancel.
            cut = asyncio.get_running_loop().call_later(limit_s, _cut, raw)
            committing = False
            try:
                async with connection.begin() as transaction:
                    await _limit(connection, statement_s)
                    yield connection
                    committing = True
                    await transaction.commit()
            except DBAPIError as error:
                raise self._translated(error, committing=committing) from None
            finally:
                cut.cancel()
        finally:
            with suppress(DBAPIError):
                await connection.close()

    def _not_reached(self, error: DBAPIError) -> RoostError:
        return Lost(
            f"{self.name} cannot be reached: {self._said(error)}",
            hint=f"does it answer this machine? psql {shlex.quote(self.name)}",
        )

    def _translated(self, error: DBAPIError, *, committing: bool) -> RoostError:
        state = getattr(error.orig, "sqlstate", None)
        said = self._said(error)
        if error.connection_invalidated or state is None or state in _GONE or state[:2] == "08":
            return Lost(f"the connection to {self.name} broke: {said}", committing=committing)
        if state[:2] == "23":
            return Conflict(f"the change contradicts what is stored: {said}")
        if state in {"53100", "53200"}:
            return NoSpace(f"{self.name} has no room for the change; nothing was changed: {said}")
        if state in {"57014", "55P03"}:
            return Unavailable(
                f"{self.name} is slow: a statement took longer than {_STATEMENT_S} s, or waited "
                f"longer than {_LOCK_S} s for another program; nothing was changed"
            )
        if state == "42501":
            return Unavailable(f"{self.name} does not let this user do that: {said}")
        return Unavailable(f"{self.name} refused: {said}")

    def _said(self, error: DBAPIError) -> str:
        """The server's or the driver's own words on one line, without the password."""
        diag = getattr(error.orig, "diag", None)
        words = " ".join((getattr(diag, "message_primary", None) or str(error.orig)).split())
        for secret in self._secrets:
            words = words.replace(secret, "***")
        return words


def passwords_in(url: str) -> tuple[str, ...]:
    """Those that the URL itself holds."""
    said = _parsed(url)
    return tuple(str(said[key]) for key in ("password", "sslpassword") if said.get(key))


def _parsed(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        # The driver's words repeat the URL, which may hold a password.
        raise Unusable(
            "the URL of the database cannot be read",
            hint="postgresql://USER@HOST:PORT/DATABASE, or for a socket: "
            "postgresql://USER@/DATABASE?host=/run/postgresql",
        ) from None


def _name(said: dict[str, Any]) -> str:
    user = f"{said['user']}@" if said.get("user") else ""
    host = str(said.get("host") or said.get("hostaddr") or "")
    port = f":{said['port']}" if said.get("port") else ""
    database = said.get("dbname") or ""
    if host.startswith("/"):
        return f"postgresql://{user}/{database}?host={host}"
    return f"postgresql://{user}{host}{port}/{database}"


async def _limit(connection: AsyncConnection, statement_s: float) -> None:
    # For this transaction only, so that a pooler may give the connection to somebody else after it.
    limits = {
        "statement_timeout": statement_s,
        "lock_timeout": max(_LOCK_S, statement_s if statement_s > _STATEMENT_S else 0),
        "idle_in_transaction_session_timeout": max(_STATEMENT_S, statement_s),
    }
    said = ", ".join(
        f"set_config('{name}', '{seconds * 1000:.0f}', true)" for name, seconds in limits.items()
    )
    await connection.execute(text(f"SELECT {said}, {_KEPT}"))


def _cut(raw: psycopg.AsyncConnection[Any]) -> None:
    """End the connection under whatever waits for it; that then fails."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(raw.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _without_nul(
    _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
) -> tuple[str, Any]:
    """PostgreSQL's text has no NUL, and what engines print may."""
    return statement, _plain(parameters)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in value else value
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(one) for one in value)
    return value
