"""Which desired state this node obeys: the newest of the fleet that it joined."""

from collections.abc import Callable

import structlog

from roost.agent.directory import Directory
from roost.domain.replica import Desired
from roost.errors import Unavailable

log = structlog.get_logger()


class Obedience:
    """The desired state obeyed last, also over restarts of the agent."""

    def __init__(self, directory: Directory, fleet: Callable[[], str]) -> None:
        self.desired: Desired | None = None
        self.problem: str | None = None
        """Why the server's last word is not obeyed, or not kept."""
        self._directory = directory
        self._fleet = fleet

    def restore(self) -> None:
        """What an earlier agent process obeyed last."""
        self.desired = self._directory.desired()

    def forget(self) -> None:
        """It was another machine's."""
        self.desired, self.problem = None, None
        try:
            self._directory.forget_desired()
        except OSError as cause:
            log.warning("agent.desired_not_forgotten", cause=str(cause))

    @property
    def known(self) -> Desired | None:
        """As far as it is this fleet's."""
        return self.desired if self.desired and self.desired.fleet == self._fleet() else None

    def accept(self, desired: Desired) -> bool:
        """Whether there is anything new in it; raises `Unavailable` for one that isn't obeyed."""
        problem = refusal(desired, self.desired, fleet=self._fleet())
        if problem is not None:
            if problem != self.problem:
                log.error("agent.desired_refused", cause=problem)
            self.problem = problem
            raise Unavailable(problem)
        self.problem = None
        if desired == self.desired:
            return False
        try:
            self._directory.keep_desired(desired)
        except OSError as cause:
            # A full disk: obeying may be what empties it, and the next agent process asks again
            # anyway.
            self.problem = f"the desired state cannot be kept on disk: {cause}"
            log.warning("agent.desired_not_kept", cause=str(cause))
        self.desired = desired
        log.info(
            "agent.obeys",
            revision=desired.revision,
            epoch=desired.epoch,
            run=len(desired.run),
            stop=len(desired.stop),
        )
        return True


def refusal(desired: Desired, known: Desired | None, *, fleet: str) -> str | None:
    """Why a desired state is not obeyed; `None`: it is."""
    if desired.fleet != fleet:
        return (
            f"the server speaks for the fleet {desired.fleet}, this node joined {fleet}: not obeyed"
        )
    if known is None or known.fleet != fleet:
        return None
    offered = (desired.incarnation, desired.epoch, desired.revision)
    highest = (known.incarnation, known.epoch, known.revision)
    if offered < highest:
        return (
            f"the server's desired state is older (incarnation, epoch, revision {offered}) than "
            f"the one obeyed ({highest}): not obeyed"
        )
    return None
