"""All facts of this machine, and what could not be learnt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from roost.agent.facts import gpus, host, infiniband
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.processes import Ours
from roost.agent.programs import Programs
from roost.domain.node import Facts

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the operator told the agent about its node."""

    root: Path = Path("/")
    labels: Mapping[str, str] = field(default_factory=dict)
    model_directories: tuple[Path, ...] = ()
    programs: Programs = field(default_factory=Programs)
    gpus: Sources = field(default_factory=Sources)
    fabrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """RDMA adapters by the name of their fabric: names or globs."""


def read(
    asked: Asked,
    cards: gpus.Reader | None = None,
    ours: Ours | None = None,
    machine: host.Reader | None = None,
) -> tuple[Facts, tuple[str, ...]]:
    """Facts and problems; a source that fails leaves its fact unknown and says why.

    `cards` and `machine` are kept by who reads again and again; `ours` are the engines that run.
    """
    problems: list[str] = []
    cards = cards or gpus.Reader(asked.gpus)

    def tried(what: str, learn: Callable[[], tuple[T, list[str]]]) -> T | None:
        try:
            found, said = learn()
        except (OSError, ValueError) as cause:
            problems.append(f"{what} cannot be read: {cause}")
            return None
        problems.extend(said)
        return found

    found_gpus = cards.read(ours or Ours())
    problems.extend(found_gpus.problems)
    fabrics, hcas, said_of_fabrics = infiniband.read(asked.root, asked.fabrics)
    problems.extend(said_of_fabrics)
    found = _host(asked, machine)
    problems.extend(found.problems)
    facts = Facts(
        # The operator's own labels win.
        labels={**found.labels, **gpus.labels(found_gpus.gpus), **asked.labels},
        memory_bytes=found.memory_bytes,
        engines=tried("engines", asked.programs.installed),
        gpus=found_gpus.gpus,
        fabrics=fabrics,
        storage=found.storage,
        gpu_details=found_gpus.details,
        hcas=hcas,
    )
    return facts, tuple(problems)


def _host(asked: Asked, machine: host.Reader | None) -> host.Found:
    if machine is not None:
        return machine.read()
    once = host.Reader(asked.root, asked.model_directories)
    try:
        return once.read()
    finally:
        once.close()
