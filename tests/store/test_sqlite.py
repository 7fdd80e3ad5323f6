import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

import roost.store.migrate as migrating
from roost.domain.node import NodeName
from roost.errors import Conflict, NoSpace, Unusable
from roost.store.guard import lock, refuse_network_filesystem
from roost.store.migrate import HEAD, migrate
from roost.store.records import CatalogText, FleetRecord, NodeRecord, Put
from roost.store.sqlite import Sqlite, create_private
from roost.store.store import Store

pytestmark = pytest.mark.anyio

FLEET = FleetRecord(fleet="f", incarnation=1, adopting=True)


async def opened(path: Path) -> Sqlite:
    create_private(path)
    database = Sqlite(path)
    await migrate(database)
    return database


def test_the_newest_migration_is_the_one_the_code_knows() -> None:
    config = Config()
    folder = Path(migrating.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_a_database_newer_than_the_code_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "roost.db"
    await (await opened(path)).close()
    with sqlite3.connect(path) as direct:
        direct.execute("UPDATE alembic_version SET version_num = '9999'")
    direct.close()
    before = path.read_bytes()
    database = Sqlite(path)
    with pytest.raises(Unusable, match="from a newer roost: its schema is 9999"):
        await migrate(database)
    await database.close()
    assert path.read_bytes() == before


async def test_a_migration_that_dies_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "roost.db"
    create_private(path)
    database = Sqlite(path)
    # One of the tables is there already, so that a later step of the migration fails.
    async with database.write() as connection:
        await connection.exec_driver_sql("CREATE TABLE shards (x INTEGER)")
    with pytest.raises(Exception, match="shards"):
        await migrate(database)
    async with database.write() as connection:
        await connection.exec_driver_sql("DROP TABLE shards")
    await migrate(database)
    await database.close()


async def test_the_database_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    database = await opened(tmp_path / "roost.db")
    store = Store(database)
    await store.commit([Put(record=FLEET)], epoch=await store.lead("me"))
    modes = {file.name: file.stat().st_mode & 0o777 for file in os.scandir(tmp_path)}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    await database.close()


async def test_a_writer_waits_for_another_program_and_readers_do_not(tmp_path: Path) -> None:
    database = await opened(tmp_path / "roost.db")
    store = Store(database)
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET)], epoch=epoch)
    backup = sqlite3.connect(database.path, isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(
        store.commit(
            [Put(record=FleetRecord(fleet="f", incarnation=2, adopting=False))], epoch=epoch
        )
    )
    for _ in range(5):
        loaded = await store.load()
        assert loaded is not None
        assert loaded.fleet == FLEET
        assert not writing.done()
    backup.execute("ROLLBACK")
    backup.close()
    await writing
    await database.close()


async def test_many_writers_at_once_all_succeed(tmp_path: Path) -> None:
    database = await opened(tmp_path / "roost.db")
    store = Store(database)
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET)], epoch=epoch)
    records = [
        NodeRecord(name=NodeName(f"n{i}"), identity=f"{i}", credential_sha256=f"{i}", joined_at=0)
        for i in range(60)
    ]
    await asyncio.gather(*(store.commit([Put(record=r)], epoch=epoch) for r in records))
    loaded = await store.load()
    assert loaded is not None
    assert len(loaded.nodes) == 60
    await database.close()


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small filesystem")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount here: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk_is_said_changes_nothing_and_is_got_over(small_disk: Path) -> None:
    database = await opened(small_disk / "roost.db")
    store = Store(database)
    epoch = await store.lead("me")
    await store.commit([Put(record=FLEET)], epoch=epoch)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="space"):
        fill(ballast)
    large = CatalogText(at=1, who="w", filename="f", text="y" * 600_000)
    changes = [Put(record=FleetRecord(fleet="f", incarnation=2, adopting=False))]
    for _ in range(2):
        with pytest.raises(NoSpace, match="nothing was changed"):
            await store.commit(changes, epoch=epoch, catalog=large)
    loaded = await store.load()
    assert loaded is not None
    assert loaded.fleet == FLEET
    ballast.unlink()
    await store.commit(changes, epoch=epoch, catalog=large)
    assert len(await store.catalogs()) == 1
    await database.close()


def test_a_second_server_on_a_directory_is_refused_naming_the_first(tmp_path: Path) -> None:
    held = lock(tmp_path)
    with pytest.raises(Conflict, match=f"process {os.getpid()}"):
        lock(tmp_path)
    held.release()
    lock(tmp_path).release()


def test_who_leaves_an_emptied_directory_takes_no_other_lock_away(tmp_path: Path) -> None:
    first = lock(tmp_path)
    (tmp_path / "lock").unlink()
    second = lock(tmp_path)
    first.release()
    with pytest.raises(Conflict):
        lock(tmp_path)
    second.release()
    assert not (tmp_path / "lock").exists()


def test_the_lock_of_a_killed_server_is_free(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib; from roost.store.guard import lock;"
        "held = lock(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(300)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Conflict, match=f"process {holder.pid}"):
            lock(tmp_path)
        holder.kill()
    lock(tmp_path).release()


@pytest.mark.parametrize(
    ("mounts", "refused"),
    [
        ("/dev/sda / ext4 rw 0 0\n", False),
        ("/dev/sda / ext4 rw 0 0\nfiler:/x {dir} nfs4 rw 0 0\n", True),
        ("filer:/x / nfs rw 0 0\n/dev/sdb {dir} xfs rw 0 0\n", False),
        ("/dev/sda / ext4 rw 0 0\nfiler:/x {dir}x nfs rw 0 0\n", False),
        ("/dev/sda {dir} ext4 rw 0 0\n//pc/share {dir} cifs rw 0 0\n", True),
        ("", False),
        ("nonsense\n", False),
    ],
)
def test_a_directory_on_a_network_filesystem_is_refused(
    tmp_path: Path, mounts: str, refused: bool
) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    listed = tmp_path / "mounts"
    listed.write_text(mounts.format(dir=directory))
    if refused:
        with pytest.raises(Unusable, match="network filesystem"):
            refuse_network_filesystem(directory, mounts=listed)
    else:
        refuse_network_filesystem(directory, mounts=listed)
