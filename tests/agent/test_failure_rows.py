"""
Each way in which a real llama.cpp was seen to fail, under a real agent: its state, and its cause.

Elsewhere, because this llama.cpp (xllamacpp's) cannot be made to:
  ended by a second SIGTERM, GGML_ASSERT   `engines/test_llama_cpp.py`, by what llama-server writes
  hangs after SIGTERM with work in flight  `reconcile/test_supervise.py`, as one that nobody reaches
  vLLM, SGLang                             `engines/test_vllm.py`, `engines/test_sglang.py`, by what
                                           they write; `e2e/test_gpu_engines.py`, vLLM itself (slow)
"""

import os
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGABRT, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM, Signals

import pytest

from agent.bad_models import bad_model
from agent.conftest import Story
from agent.node import QUICK, Node, shard
from agent.wire_server import WireServer
from roost.domain.replica import ObservedShard, ReplicaState

Tell = Callable[[Story], None]

NOBODYS = "192.0.2.1"
"""A documentation address (RFC 5737)."""
MUCH = ("-c", "400000", "-np", "1", "-fit", "off")
"""A context of 9 GB."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A start that fails, and how it is to be told; `{model}` and `{port}` are put in."""

    cause: str
    model: str | None = None
    """A kind of bad model; `None`: the good one."""
    args: tuple[str, ...] = QUICK
    host: str = "127.0.0.1"
    address_space_kb: int | None = None
    """`None`: no limit."""
    port_taken: bool = False


FAILED_STARTS = {
    "missing model": Row(
        model="missing",
        cause="exit status 1: cannot open the model file {model}: no such file or directory",
    ),
    "directory for a model": Row(
        model="directory",
        cause="exit status 1: {model} is empty or a directory (failed to read magic)",
    ),
    "empty model": Row(
        model="empty",
        cause="exit status 1: {model} is empty or a directory (failed to read magic)",
    ),
    "corrupt model": Row(
        model="corrupt",
        cause="exit status 1: {model} is not a GGUF file (invalid magic characters)",
    ),
    "truncated model": Row(
        model="truncated", cause="exit status 1: {model} is truncated or corrupt: tensor '"
    ),
    "model cut in its head": Row(
        model="cut in its head",
        cause="exit status 1: {model} is truncated or corrupt: failed to read key-value pairs",
    ),
    "model of a later format": Row(
        model="of a later format",
        cause="exit status 1: {model} is of GGUF version 99, and this build of llama.cpp knows up",
    ),
    "unknown architecture": Row(
        model="of an unknown architecture",
        cause=(
            "exit status 1: this build of llama.cpp does not know the architecture 'zeta9' of "
            "{model}"
        ),
    ),
    "more memory than there is": Row(
        args=MUCH,
        address_space_kb=3_000_000,
        cause="exit status 1: out of memory: cannot allocate CPU buffer of size 9",
    ),
    "unknown flag": Row(
        args=(*QUICK, "--x"),
        cause=(
            "exit status 1: llama-server has no argument --x: take it out of the profile's args"
        ),
    ),
    "bad value of a flag": Row(
        args=(*QUICK, "-b", "many"),
        cause='exit status 1: llama-server cannot use the argument "-b"',
    ),
    "address of nobody": Row(
        host=NOBODYS,
        cause=f"cannot listen on {NOBODYS}: no address of this machine (roost agent --host)",
    ),
    # B030. What comes last on a command line counts: as if somebody had taken the port between the
    # agent's look at it and the engine's.
    "port taken": Row(
        args=(*QUICK, "--port", "{port}"),
        cause="exit status 1: cannot listen on 127.0.0.1 port {port}: it is taken",
        port_taken=True,
    ),
}


@pytest.mark.parametrize("row", FAILED_STARTS.values(), ids=FAILED_STARTS)
def test_a_start_that_fails_is_told_with_its_cause_and_tried_again(
    tell: Tell, tmp_path: Path, row: Row
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        model = None if row.model is None else bad_model(row.model, tmp_path)
        limited = () if row.address_space_kb is None else limited_to(row.address_space_kb, tmp_path)
        with socket.create_server(("127.0.0.1", 0)) as somebody:
            port = somebody.getsockname()[1]
            args = tuple(arg.format(port=port) for arg in row.args)
            await node.start("--join", "token-1", *limited)
            await server.want(replace(shard(source=model, args=args), host=row.host))
            seen = await first_failure(server)
        # A taken port is no failure: the server gives it another one.
        state = ReplicaState.PLACED if row.port_taken else ReplicaState.FAILED
        assert (seen.state, seen.port_taken) == (state, row.port_taken)
        assert seen.cause is not None
        assert seen.cause.startswith(row.cause.format(model=model, port=port))
        assert seen.pid is None
        assert seen.due is not None
        assert seen.due > seen.since

    tell(story)


SIGNALLED = {
    SIGILL: "killed by SIGILL: this build uses instructions that this CPU does not have",
    SIGTERM: "exit status 0: somebody ended it (SIGTERM or SIGINT)",
    SIGINT: "exit status 0: somebody ended it (SIGTERM or SIGINT)",
    SIGKILL: "killed by SIGKILL: somebody ended it, or the kernel did for want of memory",
    SIGSEGV: "killed by SIGSEGV: it crashed",
    SIGABRT: "killed by SIGABRT: it gave itself up",
}


@pytest.mark.parametrize(("number", "cause"), SIGNALLED.items(), ids=[s.name for s in SIGNALLED])
def test_a_signal_from_outside_is_told_and_the_engine_comes_back(
    tell: Tell, number: Signals, cause: str
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        await server.want(shard())
        ready = await server.state("p1", ReplicaState.READY)
        assert ready.pid is not None
        os.kill(ready.pid, number)
        failed = await first_failure(server)
        assert (failed.state, failed.cause, failed.pid) == (ReplicaState.FAILED, cause, None)
        back = await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        assert back.cause == cause

    tell(story)


# The real llama-server of a machine with other instructions listened, said that it was loading, and
# died of SIGILL 0.65 s later. SIGTERM ends it at once there.
SIGNALLED_WHILE_LOADING = {
    SIGILL: SIGNALLED[SIGILL],
    SIGTERM: "killed by SIGTERM: somebody ended it",
    SIGINT: "killed by SIGINT: somebody ended it",
}


@pytest.mark.parametrize(
    ("number", "cause"),
    SIGNALLED_WHILE_LOADING.items(),
    ids=[s.name for s in SIGNALLED_WHILE_LOADING],
)
def test_a_signal_from_outside_while_it_loads_is_told_too(
    tell: Tell, tmp_path: Path, number: Signals, cause: str
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        await server.want(shard(source=bad_model("that never comes", tmp_path)))
        loading = await server.state("p1", ReplicaState.LOADING)
        assert loading.pid is not None
        os.kill(loading.pid, number)
        failed = await first_failure(server)
        assert (failed.state, failed.cause, failed.pid) == (ReplicaState.FAILED, cause, None)

    tell(story)


async def first_failure(server: WireServer) -> ObservedShard:
    """As it was reported; it may be over by now."""
    return await server.until(
        lambda: next((s for r in server.reports for s in r.shards if s.due is not None), None)
    )


def limited_to(address_space_kb: int, folder: Path) -> tuple[str, ...]:
    """The agent's words for the same llama-server with so much memory."""
    script = folder / "limited-llama-server"
    program = shlex.join((sys.executable, "-P", "-m", "roost.agent.llama_server"))
    script.write_text(f'#!/bin/sh\nulimit -v {address_space_kb}\nexec {program} "$@"\n')
    script.chmod(0o755)
    return ("--llama-server", str(script))
