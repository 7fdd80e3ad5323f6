"""Keeps the routing table at what the server last said, and the file at what the table has."""

import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Final, Protocol

import msgspec

from roost.errors import RoostError, Unreachable, Unusable
from roost.formats.routing import Snapshot, decode_snapshot
from roost.gateway.accounts import Log
from roost.gateway.fetch import fetch
from roost.gateway.snapshot_file import read_snapshot, write_snapshot
from roost.reconcile.routing import Version, reason_to_ignore

_WAIT_S: Final = 20
_LONGEST_PAUSE_S: Final = 15.0
_IGNORED_PAUSE_S: Final = 5.0


class Table(Protocol):
    """What routes by the snapshots: a gateway's routing table, or all of its workers'."""

    version: Version | None
    confirmed: asyncio.Event
    """Set once a server has said what is true now."""

    def adopt(self, snapshot: Snapshot) -> None:
        """Route by `snapshot` from now on."""


class Follower:
    """Asks the server for the next snapshot again and again; without one, what is there stays."""

    def __init__(
        self,
        *,
        table: Table,
        log: Log,
        directory: Path,
        server: str | None,
        credential_file: Path,
        rng: random.Random,
    ) -> None:
        self._table = table
        self._log = log
        self._directory = directory
        self._file = directory / "gateway" / "snapshot.json"
        self._server = server
        self._credential_file = credential_file
        self._rng = rng
        self._said: tuple[str, str] | None = None
        self.heard_at: float | None = None
        """When the server last said what is true (epoch seconds), as far as is known."""

    def load(self) -> None:
        """Route by the file, if there is one."""
        try:
            snapshot = read_snapshot(self._file)
        except Unusable as error:
            self._log.say("gateway.snapshot_unusable", cause=error.message, hint=error.hint)
            return
        if snapshot is not None:
            self._table.adopt(snapshot)
            # The file changes when routes do, so this is the earliest the server can have spoken.
            self.heard_at = self._file.stat().st_mtime
            self._log.say(
                "gateway.snapshot_loaded",
                revision=snapshot.revision,
                models=len(snapshot.models),
                keys=len(snapshot.keys),
            )

    @property
    def snapshot_age(self) -> float | None:
        """Seconds since the server last said what is true, as far as is known."""
        return None if self.heard_at is None else max(0.0, time.time() - self.heard_at)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        pause = 0.5
        while True:
            try:
                nothing_new = await self._ask()
                pause = 0.5
                if nothing_new:
                    await asyncio.sleep(_IGNORED_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - whatever is wrong there, it is asked again
                said = error.message if isinstance(error, RoostError) else repr(error)
                self._say("gateway.server_away", said)
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _ask(self) -> bool:
        """Ask once; whether to pause before the next time."""
        server, credential = self._server or self._endpoint(), self._credential()
        version = self._table.version
        query = (
            f"?revision={version.revision}&incarnation={version.incarnation}&epoch={version.epoch}"
            f"&fleet={version.fleet}"
            if version is not None
            else "?revision=-1&incarnation=-1&epoch=-1"
        )
        # Right after start the first answer is wanted at once, even if it brings nothing new.
        wait = _WAIT_S if self._table.confirmed.is_set() else 0
        status, body = await fetch(
            server,
            f"/gateway/v1/snapshot{query}&wait={wait}",
            credential=credential,
            timeout_s=_WAIT_S + 15,
        )
        if status == 204:
            self._say(None)
            self.heard_at = time.time()
            first = not self._table.confirmed.is_set()
            self._table.confirmed.set()
            return not (first or wait)
        if status == 200:
            try:
                snapshot = decode_snapshot(body)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Unreachable(
                    f"the server at {server} sends no snapshot that can be read: {error}"
                ) from error
            return not await self._consider(snapshot)
        if status in (401, 403):
            raise Unreachable(
                f"the server at {server} refuses the credential in {self._credential_file}"
            )
        raise Unreachable(f"the server at {server} answers {status} to a gateway")

    async def _consider(self, snapshot: Snapshot) -> bool:
        """Route by the snapshot if it is the newer one; whether it is."""
        offered = Version(
            fleet=snapshot.fleet,
            incarnation=snapshot.incarnation,
            epoch=snapshot.epoch,
            revision=snapshot.revision,
        )
        current = self._table.version
        reason = reason_to_ignore(offered, adopting=snapshot.adopting, current=current)
        if reason is not None:
            self._say("gateway.snapshot_ignored", reason)
            self._table.confirmed.set()
            return False
        self._say(None)
        self.heard_at = time.time()
        self._table.adopt(snapshot)
        self._table.confirmed.set()
        if offered != current:
            try:
                await asyncio.get_running_loop().run_in_executor(
                    None, write_snapshot, self._file, snapshot
                )
            except OSError as error:
                self._log.say("gateway.snapshot_not_written", cause=str(error))
        return offered != current

    def _endpoint(self) -> str:
        path = self._directory / "server" / "endpoint.json"
        try:
            api = json.loads(path.read_text())["api"]
        except FileNotFoundError:
            raise Unreachable(
                f"{path} does not say where the server is: no server has run on this directory",
                hint="give --server URL",
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unreachable(f"{path} does not say where the server is: {error}") from error
        return str(api)

    def _credential(self) -> str:
        try:
            credential = self._credential_file.read_text().strip()
        except OSError as error:
            raise Unreachable(
                f"the credential file {self._credential_file} cannot be read: {error.strerror}",
                hint="give --credential-file FILE",
            ) from error
        except UnicodeDecodeError:
            credential = ""
        if not re.fullmatch(r"[!-~]+", credential):
            raise Unreachable(f"the credential file {self._credential_file} is not one line")
        return credential

    def _say(self, event: str | None, cause: str = "") -> None:
        """Log what is wrong once, when it begins or changes, and once when it is over."""
        now = None if event is None else (event, cause)
        if now == self._said:
            return
        if event is not None:
            self._log.say(event, cause=cause)
        else:
            self._log.say("gateway.server_back")
        self._said = now
