"""All facts of this machine, and what could not be learnt."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from roost.agent import programs
from roost.agent.facts import gpus, memory, storage
from roost.agent.supervise.process import cpus
from roost.domain.node import Facts

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the operator told the agent about its node."""

    root: Path = Path("/")
    labels: Mapping[str, str] = field(default_factory=dict)
    model_directories: tuple[Path, ...] = ()
    llama_server: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def read(asked: Asked) -> tuple[Facts, tuple[str, ...]]:
    """Facts and problems; a source that fails leaves its fact unknown and says why."""
    problems: list[str] = []

    def tried(what: str, learn: Callable[[], tuple[T, list[str]]]) -> T | None:
        try:
            found, said = learn()
        except (OSError, ValueError) as cause:
            problems.append(f"{what} cannot be read: {cause}")
            return None
        problems.extend(said)
        return found

    facts = Facts(
        labels=labels(asked),
        memory_bytes=tried("memory", lambda: memory.read(asked.root)),
        engines=tried("engines", lambda: programs.installed(asked.llama_server, asked.env)),
        gpus=tried("GPUs", lambda: gpus.read(asked.root)),
        fabrics=None,
        storage=tried("storage", lambda: storage.read(asked.root, asked.model_directories)),
    )
    return facts, tuple(problems)


def labels(asked: Asked) -> dict[str, str]:
    """What is always known of a machine, and the operator's own, which win."""
    return {
        "roost/os": platform.system().lower(),
        "roost/arch": platform.machine(),
        "roost/cpus": str(cpus(asked.root)),
        **asked.labels,
    }
