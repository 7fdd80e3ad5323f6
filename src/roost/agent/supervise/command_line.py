"""Which process a shard becomes on this node: argument vector and environment, or why none."""

from dataclasses import dataclass, field

from roost.agent import models
from roost.agent.interfaces import interface_of
from roost.agent.supervise import process
from roost.agent.supervise.process import Mark
from roost.agent.supervise.tools import Tools
from roost.domain.replica import ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Site
from roost.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What is handed to the kernel."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    """Holds the engine's key."""


def command_line(spec: ShardSpec, tools: Tools, mark: Mark) -> CommandLine:
    """Raises `Unavailable` for what this node doesn't have: card, engine or model."""
    if (gone := tools.gone(spec.gpu_uuids)) is not None:
        # The engine would say it in its own words, or take what is left and fail later.
        raise Unavailable(gone)
    program = tools.program(spec.profile.engine)
    engine = adapter(spec.profile.engine)
    source = models.found(
        spec.profile.source,
        tools.model_directories,
        tools.exists,
        downloads=engine.downloads,
    )
    site = Site(
        program=program,
        source=source,
        threads=tools.threads,
        interface=interface_of(spec.host) if spec.peers else None,
    )
    return CommandLine(
        argv=engine.argv(spec, site),
        env=process.environment(tools.env, engine.env(spec, site), mark),
    )
