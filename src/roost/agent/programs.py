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


def installed(configured: Path | None, env: Mapping[str, str]) -> tuple[frozenset[str], list[str]]:
    """The engines found, and what was looked for in vain though it was asked for."""
    try:
        llama_server(configured, env)
    except Unavailable as cause:
        return frozenset(), [cause.message] if configured is not None else []
    return frozenset({Engine.LLAMA_CPP.value}), []
