"""What all shards of an agent share: where things are kept, what the node has, the time, luck."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

from roost.agent.supervise.kept import Shelf
from roost.domain.profile import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """One for an agent."""

    agent: str
    """The agent's identity, for the marks."""
    fleet: Callable[[], str]
    shelf: Shelf
    logs: Path
    model_directories: Sequence[Path]
    exists: Callable[[str], bool | None]
    """Whether a file is there; `None`: its mount does not answer."""
    program: Callable[[Engine], tuple[str, ...]]
    """How an engine is started here; raises `Unavailable`."""
    gone: Callable[[Sequence[str]], str | None]
    """Which of these cards, by uuid, is not there any more; None: none of them."""
    on_cards: Callable[[Sequence[str]], Awaitable[tuple[int, ...] | None]]
    """Process ids that the driver lists on these cards, by uuid; None: it can't say, or not in
    time.
    """
    http: httpx2.AsyncClient
    now: Callable[[], float]
    luck: Callable[[], float]
    changed: Callable[[], None]
    """Called when what would be reported has changed."""
    threads: int | None
    boot_id: str | None
    env: Mapping[str, str]
