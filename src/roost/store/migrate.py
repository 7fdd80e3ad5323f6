"""Bring a database to the schema of this code, or say why not."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from roost.errors import Unusable
from roost.store.database import Database

if TYPE_CHECKING:
    from alembic.config import Config

HEAD: Final = "0003"
"""The newest revision this code knows; a test holds it to the migrations folder."""


async def migrate(database: Database) -> None:
    """Apply what is missing, all of it or nothing; a database newer than the code is refused."""
    async with database.read() as connection:
        version = await connection.run_sync(current)
    if version == HEAD:
        return
    # Only needed now, and 15 MB of memory.
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise Unusable(
            f"{database.name} is from a newer roost: its schema is {version}, this one's is {HEAD}",
            hint="run that version, or restore a backup from before the upgrade",
        )
    async with database.migration() as connection:
        await connection.run_sync(_upgrade, config)


def current(connection: Connection) -> str | None:
    """The revision a database is at; `None`: it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _upgrade(connection: Connection, config: "Config") -> None:
    from alembic import command

    config.attributes["connection"] = connection
    command.upgrade(config, "head")
