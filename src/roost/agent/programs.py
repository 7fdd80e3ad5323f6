"""Which engines this machine has, and how each is started."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roost.domain.profile import Engine
from roost.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What the operator said of this node's engines, and where others are looked for."""

    llama_server: Path | None = None
    """`None`: the one on the PATH, else the one in xllamacpp."""
    vllm: Path | None = None
    """`None`: the one on the PATH."""
    sglang: Path | None = None
    """A Python that has SGLang; `None`: this one, if it does."""
    allow_command: bool = False
    """Engine `command` may be run here: any program that a catalog names."""
    env: Mapping[str, str] = field(default_factory=dict)

    def start_of(self, engine: Engine) -> tuple[str, ...]:
        """The beginning of an engine's command line here; raises `Unavailable`: it isn't here."""
        match engine:
            case Engine.LLAMA_CPP:
                return self._llama_server()
            case Engine.VLLM:
                return self._vllm()
            case Engine.SGLANG:
                return self._sglang()
            case Engine.COMMAND:
                if self.allow_command:
                    return ()
                raise Unavailable(
                    "this agent runs no commands: start it with --allow-command to let it",
                    hint="roost agent --allow-command, or roost up --allow-command",
                )

    def installed(self) -> tuple[frozenset[str], list[str]]:
        """The engines found, and what was looked for in vain though it was asked for.

        Nothing is started for it: vLLM takes most of a minute to say its version.
        """
        named = {
            Engine.LLAMA_CPP: self.llama_server,
            Engine.VLLM: self.vllm,
            Engine.SGLANG: self.sglang,
        }
        found, problems = set(), []
        for engine in Engine:
            try:
                self.start_of(engine)
            except Unavailable as cause:
                if named.get(engine) is not None:
                    problems.append(cause.message)
            else:
                found.add(engine.value)
        return frozenset(found), problems

    def _llama_server(self) -> tuple[str, ...]:
        """A real `llama-server` where there is one, else the launcher over xllamacpp."""
        if (program := self._program("llama-server", self.llama_server)) is not None:
            return (program,)
        if importlib.util.find_spec("xllamacpp") is not None:
            return (sys.executable, "-P", "-m", "roost.agent.llama_server")
        raise Unavailable(
            "this node has no llama.cpp: neither llama-server on the PATH nor the package "
            "xllamacpp",
            hint="pip install xllamacpp, or give the agent --llama-server PATH",
        )

    def _vllm(self) -> tuple[str, ...]:
        if (program := self._program("vllm", self.vllm)) is not None:
            return (program,)
        raise Unavailable(
            "this node has no vLLM: there is no vllm on the PATH",
            hint="install vLLM in an environment of its own, and give the agent "
            "--vllm ITS/bin/vllm",
        )

    def _sglang(self) -> tuple[str, ...]:
        if self.sglang is not None:
            return (_checked("--sglang", self.sglang),)
        if importlib.util.find_spec("sglang") is not None:
            return (sys.executable,)
        raise Unavailable(
            "this node has no SGLang: the agent's Python does not have it",
            hint="install SGLang in an environment of its own, and give the agent "
            "--sglang ITS/bin/python",
        )

    def _program(self, name: str, named: Path | None) -> str | None:
        if named is not None:
            return _checked(f"--{name}", named)
        found = shutil.which(name, path=self.env.get("PATH", os.defpath))
        return None if found is None else str(Path(found).absolute())


def _checked(option: str, program: Path) -> str:
    if (why := _why_not(program)) is not None:
        key = option.removeprefix("--").replace("-", "_")
        raise Unavailable(
            f"{option} {program} is not a program that can be run: {why}; change {option} or, in "
            f"roost.toml, {key} of [agent]"
        )
    return str(program.absolute())


def _why_not(program: Path) -> str | None:
    """`None`: it can be run."""
    if not program.exists():
        return "there is no such file"
    if program.is_dir():
        return "it is a directory"
    if not os.access(program, os.X_OK):
        return f"it is not executable (chmod +x {program})"
    return None
