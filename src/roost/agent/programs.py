"""Which engines this machine has, and how each is started."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from roost.domain.profile import Engine
from roost.errors import Unavailable


def llama_server(configured: Path | None, env: Mapping[str, str]) -> tuple[str, ...]:
    """A real `llama-server` where there is one, else the launcher over xllamacpp."""
    if configured is not None:
        if not os.access(configured, os.X_OK) or configured.is_dir():
            raise Unavailable(f"--llama-server {configured} is not a program that can be run")
        return (str(configured.absolute()),)
    if found := shutil.which("llama-server", path=env.get("PATH", os.defpath)):
        return (str(Path(found).absolute()),)
    if importlib.util.find_spec("xllamacpp") is not None:
        return (sys.executable, "-P", "-m", "roost.agent.llama_server")
    raise Unavailable(
        "this node has no llama.cpp: neither llama-server on the PATH nor the package xllamacpp",
        hint="pip install xllamacpp, or give the agent --llama-server PATH",
    )


def start_of(
    engine: Engine, *, llama: Path | None, allow_command: bool, env: Mapping[str, str]
) -> tuple[str, ...]:
    """The beginning of an engine's command line here; empty where the adapter knows all of it."""
    match engine:
        case Engine.LLAMA_CPP:
            return llama_server(llama, env)
        case Engine.COMMAND if not allow_command:
            raise Unavailable(
                "this agent runs no commands: start it with --allow-command to let it",
                hint="roost agent --allow-command, or roost up --allow-command",
            )
        case _:
            # The adapter, asked next, says whether there is one.
            return ()


def installed(
    configured: Path | None, env: Mapping[str, str], *, allow_command: bool = False
) -> tuple[frozenset[str], list[str]]:
    """The engines found, and what was looked for in vain though it was asked for."""
    allowed = frozenset({Engine.COMMAND.value} if allow_command else ())
    try:
        llama_server(configured, env)
    except Unavailable as cause:
        return allowed, [cause.message] if configured is not None else []
    return allowed | {Engine.LLAMA_CPP.value}, []
