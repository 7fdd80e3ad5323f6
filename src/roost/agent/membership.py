"""Which fleet this node belongs to: joining, and joining again when its credential is refused."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog

from roost.agent.backoff import Backoff
from roost.agent.directory import Credential, Directory
from roost.agent.server import Server
from roost.agent.supervise import procfs
from roost.errors import Refused, Unavailable, UserError
from roost.formats import agent_wire as wire

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a node joins with."""

    name: str
    """What it would like to be called."""
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    """Read whenever a token is needed; instead of `token`."""


class Membership:
    """Who this node is, and to whom."""

    def __init__(
        self,
        server: Server,
        directory: Directory,
        invitation: Invitation,
        *,
        luck: Callable[[], float],
        joined_again: Callable[[], None],
    ) -> None:
        self.identity = ""
        self.credential: Credential | None = None
        self.version = _version()
        self._server = server
        self._directory = directory
        self._invitation = invitation
        self._luck = luck
        self._joined_again = joined_again
        self._joining = asyncio.Lock()
        self._is_kept = True

    def restore(self) -> None:
        """What earlier agent processes left; makes the identity if there is none."""
        self.identity = self._directory.identity()
        self.credential = self._directory.credential()

    @property
    def fleet(self) -> str:
        """Empty before the first join."""
        return "" if self.credential is None else self.credential.fleet

    @property
    def node(self) -> str:
        """What the server calls this node; empty before the first join."""
        return "" if self.credential is None else self.credential.node

    async def begin(self) -> None:
        """Join unless an earlier process did; waits for a server that is away, raises when it
        refuses.
        """
        if self.credential is not None:
            if self.credential.server != self._server.url:
                log.info("agent.server_moved", server=self._server.url)
            if self.credential.node != self._invitation.name:
                log.info("agent.name_stays", node=self.node, asked=self._invitation.name)
            return
        if self._token() is None:
            raise Refused(
                "this node has not joined a fleet, and there is no token to join with",
                hint="make one with: roost ctl token create; then: roost agent --join TOKEN",
            )
        backoff = Backoff(self._luck)
        while True:
            try:
                await self._join()
            except UserError:
                raise
            except Unavailable as cause:
                pause = backoff.next()
                log.warning("agent.join_waits", cause=cause.message, again_in_s=round(pause, 1))
                await asyncio.sleep(pause)
            else:
                return

    async def again(self, refused: str) -> None:
        """The credential that was `refused` is of no more use: buy another one, with the same
        identity.
        """
        async with self._joining:
            if self.credential is None or self.credential.credential != refused:
                return
            await self._join()
        self._joined_again()

    async def _join(self) -> None:
        token = self._token()
        if token is None:
            raise Refused("the server does not know this node any more, and there is no token")
        joined = await self._server.join(
            wire.Join(
                token=token,
                name=self._invitation.name,
                identity=self.identity,
                boot_id=procfs.boot_id(),
                agent_version=self.version,
            )
        )
        credential = Credential(
            server=self._server.url,
            fleet=joined.fleet,
            node=joined.node,
            credential=joined.credential,
        )
        self.credential = credential
        log.info("agent.joined", fleet=joined.fleet, node=joined.node)
        self._is_kept = False
        self.keep()

    def keep(self) -> None:
        """On disk, unless it is; a full one is no reason to lose what a token has bought."""
        if self._is_kept or self.credential is None:
            return
        try:
            self._directory.keep_credential(self.credential)
        except OSError as cause:
            log.warning("agent.credential_not_kept", cause=str(cause))
        else:
            self._is_kept = True

    def _token(self) -> str | None:
        """As it is now: whoever runs the server may have written a new one into the file."""
        file = self._invitation.token_file
        if file is not None:
            try:
                return file.read_text().strip() or None
            except OSError as cause:
                log.warning("agent.no_token_file", cause=str(cause))
                return None
        return self._invitation.token


def _version() -> str:
    try:
        return version("roost")
    except PackageNotFoundError:
        return ""
