"""Whether a PostgreSQL's database can be a server's: looked at before anything is written there."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from roost.errors import Unusable
from roost.store.database import Database
from roost.store.schema import metadata

OLDEST: Final = 13
_OURS: Final = frozenset({"alembic_version", *metadata.tables})
_ALWAYS_OURS: Final = frozenset({"alembic_version", "fleet", "lease"})
"""Of every version of Roost."""

_ABOUT: Final = """
SELECT current_setting('server_version_num')::int AS version,
       current_setting('server_version') AS said,
       current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only')::bool AS read_only,
       current_user::text AS "user",
       current_schema()::text AS schema,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create
"""

# What came with an extension is nobody's.
_TABLES: Final = """
SELECT c.relname::text AS name,
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
       AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') AS may
FROM pg_class c
WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema()))
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                  AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY 1
"""


async def check(database: Database, *, oldest: int = OLDEST) -> None:
    """Raise `Unusable`, which says what to change, where Roost cannot keep a fleet."""
    async with database.read() as connection:
        await _check_server(connection, database.name, oldest)
        await _check_tables(connection, database.name)


async def _check_server(connection: AsyncConnection, name: str, oldest: int) -> None:
    about = (await connection.execute(text(_ABOUT))).mappings().one()
    if about["version"] < oldest * 10_000:
        raise Unusable(
            f"{name} is PostgreSQL {about['said']}, and Roost needs {oldest} or newer",
            hint="upgrade that server, or name another",
        )
    if about["standby"] or about["read_only"]:
        raise Unusable(
            f"{name} is {'a standby' if about['standby'] else 'read-only'}: "
            "nothing can be written there",
            hint="name the primary, or all of them: "
            "postgresql://USER@HOST1,HOST2/DATABASE?target_session_attrs=read-write",
        )
    if about["encoding"] != "UTF8":
        raise Unusable(
            f"{name} is encoded in {about['encoding']}, and Roost needs UTF8",
            hint="CREATE DATABASE roost ENCODING 'UTF8' TEMPLATE template0",
        )
    if about["schema"] is None:
        raise Unusable(
            f"{name} has no schema in which user {about['user']} could make tables",
            hint=f'as its owner: CREATE SCHEMA AUTHORIZATION "{about["user"]}"',
        )
    if not about["may_create"]:
        raise Unusable(
            f"user {about['user']} may not make tables in schema {about['schema']} of {name}",
            hint=f'as its owner: GRANT CREATE ON SCHEMA "{about["schema"]}" TO "{about["user"]}"',
        )


async def _check_tables(connection: AsyncConnection, name: str) -> None:
    found = (await connection.execute(text(_TABLES))).mappings().all()
    tables = {row["name"] for row in found}
    if tables and not tables >= _ALWAYS_OURS:
        raise Unusable(
            f"{name} has tables of another program: {_some(tables)}",
            hint="give Roost a database of its own: CREATE DATABASE roost",
        )
    closed = [row["name"] for row in found if row["name"] in _OURS and not row["may"]]
    if closed:
        raise Unusable(
            f"this user may not read and write all tables of {name}: not {_some(closed)}",
            hint="name the user who made them, or let it own them: REASSIGN OWNED BY OLD TO NEW",
        )


def _some(names: Iterable[str]) -> str:
    told = sorted(names)
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
