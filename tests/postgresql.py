"""A PostgreSQL server of a test's own, from the machine's package, on a socket in a directory."""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest


def program(name: str) -> str:
    """Where it is; the test is skipped where it isn't."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda f: int(f.parent.name))
    found = shutil.which(name, path=os.pathsep.join([*map(str, reversed(folders)), os.defpath]))
    if found is None:
        pytest.skip(f"{name} is not installed: apt install postgresql")
    return found


class Cluster:
    """One server, which root starts as the user postgres: PostgreSQL refuses to run as root."""

    def __init__(self) -> None:
        self._initdb, self._postgres = program("initdb"), program("postgres")
        self.user: str | None = None
        if os.geteuid() == 0:
            try:
                pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("there is no user postgres to run PostgreSQL as: it refuses root")
            self.user = "postgres"
        # A socket's path has at most 107 bytes, fewer than pytest's directories may need.
        self.folder = Path(tempfile.mkdtemp(prefix="roost-pg-"))
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self._process: subprocess.Popen[bytes] | None = None
        self.databases = 0
        try:
            self._run(
                [
                    self._initdb,
                    "--auth=scram-sha-256",
                    "--auth-local=trust",
                    "--username=roost",
                    "--encoding=UTF8",
                    "--no-locale",
                    "--no-sync",
                    "-D",
                    str(self.folder / "data"),
                ]
            )
            self.start()
        except BaseException:
            self.end()
            raise

    def _run(self, words: list[str]) -> None:
        ran = subprocess.run(
            words, user=self.user, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    @property
    def socket(self) -> Path:
        """What it listens on."""
        return self.folder / ".s.PGSQL.5432"

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._postgres,
                    "-D",
                    str(self.folder / "data"),
                    "-k",
                    str(self.folder),
                    "-c",
                    "listen_addresses=",
                    "-c",
                    "fsync=off",
                ],
                user=self.user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            if self._answers():
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres")):
            return True
        return False

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it at once and take its sessions with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(30)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It and its sessions stand still: connections stay, and nothing is answered."""
        # The first before the others: it starts no more of them.
        os.kill(self.pid, signal.SIGSTOP)
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        pids = [self.pid, *map(int, children)]
        for pid in pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def make_standby(self) -> None:
        """Once it is started again it only reads, and waits for a primary."""
        signal_file = self.folder / "data" / "standby.signal"
        signal_file.touch()
        if self.user is not None:
            shutil.chown(signal_file, self.user)

    def end(self) -> None:
        """Stop it, as if it crashed, and remove what it made."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = "roost") -> str:
        """Of a database of it."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def named(self, url: str) -> str:
        """The name of the database of that URL."""
        return url.partition("@/")[2].partition("?")[0]

    def create(self) -> str:
        """A new, empty database; its URL."""
        self.databases += 1
        name = f"test{self.databases}"
        self.do(f"CREATE DATABASE {name}")
        return self.url(name)

    def do(self, sql: str, *, database: str = "postgres") -> None:
        """One statement, as the superuser."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(sql.encode())


class Proxy:
    """Passes bytes on; cuts a connection when its client commits, before or after it is done."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._serving: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Event] = set()
        self.url = ""
        self.cut: str | None = None
        """`before`: COMMIT never arrives; `after`: its answer never does. Once, then `None`."""
        self.cuts = 0
        self.was_cut = asyncio.Event()
        self.refuse_after_cut = False
        """With that connection go the others, and `refuse` is set."""
        self.refuse = False
        """Every new connection is closed at once."""
        self.refused = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, cluster: Cluster, url: str) -> AsyncIterator[Self]:
        """One whose `url` leads to the database of that URL."""
        proxy = cls(str(cluster.socket))
        server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        proxy.url = f"postgresql://roost@127.0.0.1:{port}/{cluster.named(url)}?sslmode=disable"
        try:
            yield proxy
        finally:
            server.close()
            proxy.drop()
            await asyncio.gather(*proxy._serving)

    def drop(self, *, but: asyncio.Event | None = None) -> None:
        """Cut every connection but that one."""
        for ending in self._ending:
            if ending is not but:
                ending.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection; it is passed on until one side ends it."""
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            self.refused += 1
            writer.close()
            return
        inner, outer = await asyncio.open_unix_connection(self._to)
        ending, swallow = asyncio.Event(), asyncio.Event()
        self._ending.add(ending)

        async def up() -> None:
            while said := await reader.read(65536):
                if self.cut is not None and b"COMMIT\0" in said:
                    when, self.cut = self.cut, None
                    self.cuts += 1
                    if self.refuse_after_cut:
                        self.refuse = True
                        self.drop(but=ending)
                    self.was_cut.set()
                    if when == "before":
                        break
                    swallow.set()
                outer.write(said)
            ending.set()

        async def down() -> None:
            while (said := await inner.read(65536)) and not swallow.is_set():
                writer.write(said)
            ending.set()

        tasks = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
        await ending.wait()
        self._ending.discard(ending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (outer, writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()
