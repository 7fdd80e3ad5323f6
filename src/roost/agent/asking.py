"""What the agent does when the server refuses it or is away: asks again, and keeps its engines."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from roost import errors
from roost.agent.backoff import Backoff
from roost.agent.copied import Copied
from roost.agent.membership import Membership
from roost.agent.tasks import first
from roost.errors import NotFound, Refused, RoostError

log = structlog.get_logger()


class Asking:
    """Shared by all loops that ask: what one finds out of the server, all know."""

    def __init__(self, membership: Membership, copied: Copied) -> None:
        self._membership = membership
        self._copied = copied
        self._answers = asyncio.Event()

    async def attempt(
        self, what: str, backoff: Backoff, ask: Callable[[str], Awaitable[None]]
    ) -> bool:
        """Whether it worked; says so only when that changes. A refused credential is replaced if it
        can be.
        """
        credential = self._membership.credential
        if credential is None:
            return False
        try:
            await ask(credential.credential)
        except (Refused, NotFound) as cause:
            _say(what, backoff, cause)
            try:
                await self._membership.again(credential.credential)
            except RoostError as again:
                self._note(again)
                _say(f"{what}: join", backoff, again)
        except RoostError as cause:
            self._note(cause)
            _say(what, backoff, cause)
        else:
            self._copied.accepted()
            if backoff.failing:
                log.info("agent.server_answers_again", what=what)
                self._answers.set()
                self._answers = asyncio.Event()
            return True
        return False

    def _note(self, cause: RoostError) -> None:
        if isinstance(cause, errors.Copied):
            self._copied.refused()

    async def pause(self, seconds: float) -> None:
        """Until then, or until another loop finds that the server answers again."""
        await first(self._answers.wait(), seconds)


def _say(what: str, backoff: Backoff, cause: RoostError) -> None:
    if not backoff.failing:
        hint = {} if cause.hint is None else {"hint": cause.hint}
        log.warning("agent.server_away", what=what, cause=cause.message, engines="stay", **hint)
