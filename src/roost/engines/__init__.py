"""One small file an engine, no I/O: command line, health, metric names, failure causes."""

from roost.domain.profile import Engine
from roost.engines.adapter import Adapter
from roost.engines.command import Command
from roost.engines.llama_cpp import LlamaCpp
from roost.errors import Unavailable

_ADAPTERS: dict[Engine, Adapter] = {
    Engine.LLAMA_CPP: LlamaCpp(),
    Engine.COMMAND: Command(),
}


def adapter(engine: Engine) -> Adapter:
    """How to run `engine`."""
    try:
        return _ADAPTERS[engine]
    except KeyError:
        raise Unavailable(f"this agent has no adapter for {engine} yet") from None
