"""Which replica a request goes to, which is left alone for a while, and which snapshot counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Protocol

FAILURES_TO_EJECT: Final = 3
FIRST_EJECTION_S: Final = 1.0
LONGEST_EJECTION_S: Final = 30.0


class Random(Protocol):
    """What is needed of `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""


def less_loaded_of_two(loads: Sequence[float], rng: Random) -> int:
    """The index of the less loaded of two drawn at random; of equals, the first drawn."""
    count = len(loads)
    if count == 1:
        return 0
    first = int(rng.random() * count)
    second = int(rng.random() * (count - 1))
    if second >= first:
        second += 1
    return second if loads[second] < loads[first] else first


def first_for(session: bytes, replicas: Sequence[str]) -> int:
    """The index of the replica that a session belongs to, whatever their order.

    By the highest hash (rendezvous hashing): a replica that comes or goes moves only the sessions
    that go to it or were its own.
    """

    def weight(index: int) -> bytes:
        return blake2b(replicas[index].encode(), key=session[:64], digest_size=8).digest()

    return max(range(len(replicas)), key=lambda index: (weight(index), replicas[index]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """
    What a gateway has seen of a replica's connections.

    Answering is healthy, whatever the answer's status; a client that leaves says nothing.
    """

    failures: int = 0
    """In a row."""
    ejections: int = 0
    """In a row: each is twice as long as the one before."""
    until: float | None = None
    """Left alone until then, after which one request probes it; `None`: in use."""
    probing: bool = False

    def takes(self, now: float) -> bool:
        """Whether a request may go there."""
        return self.until is None or (now >= self.until and not self.probing)

    def sent(self) -> "Health":
        """A request goes there."""
        return self if self.until is None else replace(self, probing=True)

    def answered(self) -> "Health":
        """A request came to an answer."""
        return HEALTHY

    def let_go(self) -> "Health":
        """A request ended without saying anything about the replica."""
        return replace(self, probing=False) if self.probing else self

    def failed(self, now: float) -> "Health":
        """The connection was refused, broke, or brought nothing in time."""
        failures = self.failures + 1
        if failures < FAILURES_TO_EJECT:
            return replace(self, failures=failures)
        if self.until is not None and not self.probing:
            # A request from before the ejection: it says nothing new.
            return replace(self, failures=failures)
        away = min(FIRST_EJECTION_S * 2**self.ejections, LONGEST_EJECTION_S)
        return Health(failures=failures, ejections=self.ejections + 1, until=now + away)

    def dropped(self, now: float) -> "Health":
        """The replica refuses the key that the route gives: the route is of another time."""
        return Health(
            failures=self.failures, ejections=self.ejections, until=now + LONGEST_EJECTION_S
        )


HEALTHY: Final = Health()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Where a snapshot stands: (`incarnation`, `epoch`, `revision`) only grows within a fleet."""

    fleet: str
    incarnation: int
    epoch: int
    revision: int


def reason_to_ignore(offered: Version, *, adopting: bool, current: Version | None) -> str | None:
    """Why a snapshot is not routed by; `None`: it is the newer one."""
    if current is None:
        return None
    if (offered.fleet, offered.incarnation) != (current.fleet, current.incarnation):
        if adopting:
            return (
                f"the server adopts what it finds as fleet {offered.fleet}, incarnation "
                f"{offered.incarnation}; routing stays with fleet {current.fleet}, incarnation "
                f"{current.incarnation}"
            )
        if offered.fleet == current.fleet and offered.incarnation < current.incarnation:
            return f"incarnation {offered.incarnation} is older than {current.incarnation}"
        return None
    if (offered.epoch, offered.revision) < (current.epoch, current.revision):
        return (
            f"epoch {offered.epoch}, revision {offered.revision} is older than "
            f"epoch {current.epoch}, revision {current.revision}"
        )
    return None
