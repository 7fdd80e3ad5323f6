"""Bring a database to the schema of this code, or say why not."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from roost.errors import Unusable
from roost.store.database import Database

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

HEAD: Final = "0003"
"""The newest revision this code knows; a test holds it to the migrations folder."""


async def version(database: Database) -> str | None:
    """The revision a database is at; `None`: it is empty. One of a newer Roost is refused."""
    async with database.read() as connection:
        found = await connection.run_sync(current)
    _refuse_newer(found, database.name)
    return found


async def migrate(database: Database) -> None:
    """Apply what is missing, all of it or nothing; a database newer than the code is refused."""
    if await version(database) == HEAD:
        return
    async with database.migration() as connection:
        # Another server may have done it while this one waited for its turn.
        found = await connection.run_sync(current)
        _refuse_newer(found, database.name)
        if found != HEAD:
            await connection.run_sync(_upgrade)


def _refuse_newer(found: str | None, name: str) -> None:
    if found is None or found == HEAD:
        return
    if found not in {script.revision for script in _scripts(_config()).walk_revisions()}:
        raise Unusable(
            f"{name} is from a newer roost: its schema is {found}, this one's is {HEAD}",
            hint="run that version, or restore a backup from before the upgrade",
        )


def current(connection: Connection) -> str | None:
    """The revision a database is at; `None`: it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _config() -> "Config":
    # Needed for a new or an older database only, and 15 MB of memory.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _scripts(config: "Config") -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(config)


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
