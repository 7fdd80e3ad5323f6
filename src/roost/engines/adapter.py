"""What the agent must know of an engine to run it; one small pure module an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import ShardSpec
from roost.reconcile.engine_life import Ended, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the node contributes to a command line."""

    program: tuple[str, ...]
    """How the engine is started here: `("/usr/bin/llama-server",)`, or a launcher with its
    interpreter.
    """
    source: str
    """The model's absolute path; `OWNER/NAME` for an engine that downloads; empty where the profile
    names no source.
    """
    interface: str | None = None
    """The network interface that has the node's address; `None`: not known."""
    threads: int | None = None
    """CPUs this agent may use; `None`: not known, the engine decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended. `status` is negative for a signal, as in `subprocess`."""

    status: int | None
    """`None`: not known, because it was nobody's child any more."""
    log: str
    """The last of what it wrote."""


class Adapter(Protocol):
    """One engine; every method is pure."""

    engine: Engine
    downloads: bool
    """It fetches a model of the Hugging Face Hub itself, by its name."""
    optional_metrics: frozenset[str]
    """Names of series that some of its builds have and some don't: nobody is to worry."""
    slots_path: str | None
    """Where the engine says how many requests it takes at once."""

    def argv(self, spec: ShardSpec, site: Site) -> tuple[str, ...]:
        """The command line; holds no secret."""
        ...

    def env(self, spec: ShardSpec, site: Site) -> Mapping[str, str]:
        """What the engine needs in its environment, its key among it."""
        ...

    def health_path(self, spec: ShardSpec) -> str | None:
        """Where it says how it is; `None`: this rank answers nobody, and is well while it lives."""
        ...

    def health(self, status: int, body: bytes) -> Health:
        """What an answer at `health_path` means."""
        ...

    def metrics(self, spec: ShardSpec) -> MetricNames | None:
        """Where its load is found; `None`: not measured."""
        ...

    def slots(self, body: bytes) -> int | None:
        """Out of the answer at `slots_path`."""
        ...

    def ended(self, exit_: Exit, spec: ShardSpec) -> Ended:
        """Why it ended, by what it wrote and how it exited."""
        ...


def gives(args: tuple[str, ...], flag: str) -> bool:
    """Whether a profile's `args` set a long flag, with hyphens or underscores."""
    return any(arg.partition("=")[0].replace("_", "-") == flag for arg in args)
