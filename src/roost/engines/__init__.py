"""One small file an engine, no I/O: command line, health, metric names, failure causes."""

from roost.domain.profile import Engine
from roost.engines.adapter import Adapter
from roost.engines.command import Command
from roost.engines.llama_cpp import LlamaCpp
from roost.engines.sglang import Sglang
from roost.engines.vllm import Vllm

_ADAPTERS: dict[Engine, Adapter] = {
    Engine.LLAMA_CPP: LlamaCpp(),
    Engine.VLLM: Vllm(),
    Engine.SGLANG: Sglang(),
    Engine.COMMAND: Command(),
}


def adapter(engine: Engine) -> Adapter:
    """How to run `engine`."""
    return _ADAPTERS[engine]
