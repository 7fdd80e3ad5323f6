"""A PostgreSQL server of a test's own, from the machine's package, on a socket in a directory."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

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
        self._databases = 0
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

    def stop(self) -> None:
        """End it at once and take its sessions with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(30)

    def end(self) -> None:
        """Stop it and remove what it made."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = "roost") -> str:
        """Of a database of it."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def create(self) -> str:
        """A new, empty database; its URL."""
        self._databases += 1
        name = f"test{self._databases}"
        self.do(f"CREATE DATABASE {name}")
        return self.url(name)

    def do(self, sql: str, *, database: str = "postgres") -> None:
        """One statement, as the superuser."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(sql.encode())
