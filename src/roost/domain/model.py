"""What clients ask for by name, and the whole of what an operator applied."""

from dataclasses import dataclass
from typing import NewType

from roost.domain.profile import Profile

ModelName = NewType("ModelName", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How many requests may wait for a model, and for how long."""

    size: int = 64
    max_wait_s: float = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """How many replicas of what, and the profiles that can run it, as listed."""

    name: ModelName
    profiles: tuple[Profile, ...]
    aliases: tuple[str, ...] = ()
    replicas: int = 1
    priority: int = 0
    queue: Queue = Queue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The models and profiles applied, in the file's order."""

    models: tuple[Model, ...] = ()
