"""One engine and its machine, as the shell of the supervision would see them."""

from dataclasses import dataclass, field

from roost.domain.replica import ReplicaState
from roost.reconcile.engine_life import (
    NOTHING_LEFT,
    Action,
    Ended,
    Forget,
    GroupStart,
    Health,
    Kill,
    Left,
    Life,
    Limits,
    Phase,
    Seen,
    Start,
    Terminate,
    next_look,
    state_of,
)
from roost.reconcile.supervise import started, step


@dataclass
class World:
    """One engine and its machine, as dumb as possible: the shell's part, with made-up time."""

    life: Life = field(default_factory=Life)
    limits: Limits = field(default_factory=Limits)
    now: float = 1000.0
    wanted: bool = True
    running: bool = False
    others: int = 0
    children: int = 0
    """That every start makes and that outlive the first process."""
    health: Health | None = None
    ended: Ended | None = None
    log_bytes: int = 0
    in_flight: float | None = 0
    scraped: bool = False
    left: Left = NOTHING_LEFT
    """Of an engine of which no process lives."""
    deaf: bool = False
    """Ignores SIGTERM."""
    start: GroupStart | None = None
    """That is wanted of its group; None: it is alone."""
    starts: list[float] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def look(self, *, luck: float = 0.0) -> tuple[Action, ...]:
        seen = Seen(
            running=self.running,
            others=() if self.running else tuple(range(100, 100 + self.others)),
            ended=self.ended,
            health=self.health if self.running else None,
            log_bytes=self.log_bytes,
            in_flight=self.in_flight if self.running else None,
            scraped=self.scraped and self.running,
            left=NOTHING_LEFT if self.running or self.others else self.left,
        )
        self.life, actions = step(
            self.life,
            seen,
            wanted=self.wanted,
            limits=self.limits,
            now=self.now,
            luck=luck,
            start=self.start,
        )
        for action in actions:
            self._do(action)
        return actions

    def _do(self, action: Action) -> None:
        self.story.append(type(action).__name__)
        match action:
            case Start():
                assert not self.running, "two engines for one shard"
                assert self.others == 0, "started beside a process of the last run"
                self.starts.append(self.now)
                self.running, self.others, self.ended = True, self.children, None
                self.health, self.log_bytes = Health.REFUSED, 0
                self.life = started(self.life, now=self.now)
            case Terminate():
                if not self.deaf:
                    self.running = False
            case Kill():
                self.running, self.others = False, 0
            case Forget():
                assert not self.running
                assert self.others == 0

    def crash(self, cause: str = "exit status 1", *, port_taken: bool = False) -> None:
        self.running = False
        self.ended = Ended(cause=cause, port_taken=port_taken)

    def wait(self) -> None:
        """Until the next start is due."""
        assert self.life.due is not None
        self.now = self.life.due

    def run_for(self, seconds: float) -> None:
        """Look whenever the core asks for it."""
        end = self.now + seconds
        while self.now < end:
            self.look()
            self.now = min(end, self.now + next_look(self.life, now=self.now))
        self.look()

    def until_ready(self) -> "World":
        self.look()
        self.health = Health.READY
        self.look()
        assert self.life.phase is Phase.READY
        return self

    def state(self) -> ReplicaState:
        return state_of(self.life)
