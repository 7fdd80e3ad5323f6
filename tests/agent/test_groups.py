"""A rank of a replica on several nodes under a real agent process: one start of it in each start of
its group, whatever becomes of the agent.
"""

import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.conftest import Story
from agent.node import Node, free_port, shard
from agent.wire_server import WireServer
from roost.agent.supervise import procfs
from roost.agent.supervise.kept import Kept, Shelf
from roost.domain.replica import ObservedShard, ReplicaState, ShardSpec

Tell = Callable[[Story], None]

FAILED, PLACED, READY = ReplicaState.FAILED, ReplicaState.PLACED, ReplicaState.READY
STARTING, STOPPED = ReplicaState.STARTING, ReplicaState.STOPPED


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """The agent's, with the fake engine as its vLLM."""
    vllm = tmp_path / "vllm"
    fake = f"{shlex.quote(sys.executable)} -P -m roost.testing.fake_engine"
    vllm.write_text(f'#!/bin/sh\nexec {fake} "$@"\n')
    vllm.chmod(0o755)
    return ("--join", "token-1", "--vllm", str(vllm))


def ranks(**changes: int | bool) -> tuple[ShardSpec, ShardSpec]:
    """Both, on this one node."""
    one = shard("p1", source="/models/none", engine="vllm", args=("--loss-s", "0.2"))
    profile = replace(one.profile, nodes=2, tensor_parallel=2)
    one = replace(one, profile=profile, peers=(one.host, one.host), group_port=free_port())
    one = replace(one, **changes)  # type: ignore[arg-type]  # by name
    return one, replace(one, rank=1, port=free_port())


def again(spec: ShardSpec, generation: int, *, hold: bool = False) -> ShardSpec:
    return replace(spec, generation=generation, hold=hold)


def lives(pid: int | None) -> bool:
    found = None if pid is None else procfs.stat(pid)
    return found is not None and found.lives


def rank_of(server: WireServer, rank: int) -> ObservedShard | None:
    """As last reported."""
    shards = server.reports[-1].shards if server.reports else ()
    return next((one for one in shards if one.rank == rank), None)


async def told(
    server: WireServer, state: ReplicaState, generation: int, rank: int = 1
) -> ObservedShard:
    """A rank, once it is reported in this state of this start."""

    def found() -> ObservedShard | None:
        one = rank_of(server, rank)
        return one if one and (one.state, one.generation) == (state, generation) else None

    return await server.until(found)


async def new_agent(node: Node, server: WireServer, *words: str) -> None:
    """The one before was killed; once this one has reported."""
    await node.start(*words)
    await server.next_report()


def test_a_rank_that_failed_is_not_started_again_in_its_start_by_a_new_agent_either(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks(generation=3)
        await server.want(spec)
        ready = await told(server, READY, 3)
        assert ready.pid is not None
        os.kill(ready.pid, signal.SIGKILL)
        failed = await told(server, FAILED, 3)
        assert failed.cause is not None
        assert "SIGKILL" in failed.cause
        await node.end(signal.SIGKILL)

        await new_agent(node, server, *words)
        remembered = await told(server, FAILED, 3)
        assert (remembered.cause, remembered.pid) == (failed.cause, None)
        assert remembered.due is None
        await server.want(again(spec, 4, hold=True))
        await told(server, PLACED, 4)
        assert node.engines() == []
        await node.end(signal.SIGKILL)

        await new_agent(node, server, *words)
        held = await told(server, PLACED, 4)
        assert (held.cause, held.pid) == (None, None)
        assert node.engines() == []
        await server.want(again(spec, 4))
        back = await told(server, READY, 4)
        assert back.restarts == 1

    tell(story)


def test_a_rank_that_could_not_be_started_is_not_tried_again_in_its_start_by_a_new_agent(
    tell: Tell, words: tuple[str, ...], tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks(generation=3)
        await server.want(spec)
        await told(server, READY, 3)
        (tmp_path / "vllm").chmod(0o644)
        await server.want(again(spec, 4))
        failed = await told(server, FAILED, 4)
        assert failed.cause is not None
        assert "it is not executable" in failed.cause
        await node.end(signal.SIGKILL)
        (tmp_path / "vllm").chmod(0o755)
        await new_agent(node, server, *words)
        assert (await told(server, FAILED, 4)).cause == failed.cause
        assert node.engines() == []
        await server.want(again(spec, 5))
        await told(server, READY, 5)

    tell(story)


def test_a_rank_that_ended_with_its_agent_has_failed_in_its_start(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks(generation=3)
        await server.want(spec)
        ready = await told(server, READY, 3)
        assert ready.pid is not None
        await node.end(signal.SIGKILL)
        os.kill(ready.pid, signal.SIGKILL)
        await new_agent(node, server, *words)
        failed = await told(server, FAILED, 3)
        assert failed.cause is not None
        assert "exit status not known" in failed.cause
        assert node.engines() == []

    tell(story)


@pytest.mark.parametrize("file", ["its file is there", "its file is lost"])
def test_a_new_agent_adopts_a_rank_of_the_start_that_is_wanted(
    tell: Tell, words: tuple[str, ...], file: str
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks(generation=3)
        await server.want(spec)
        ready = await told(server, READY, 3)
        await node.end(signal.SIGKILL)
        if file == "its file is lost":
            Shelf(node.directory / "agent" / "shards").remove("p1", 1)
        await new_agent(node, server, *words)
        adopted = await told(server, READY, 3)
        assert (adopted.pid, adopted.restarts) == (ready.pid, 0)
        assert node.engines() == [ready.pid]

    tell(story)


def test_a_new_agent_ends_a_rank_of_an_earlier_start_and_waits_for_the_one_that_is_wanted(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks(generation=3)
        await server.want(spec)
        ready = await told(server, READY, 3)
        await node.end(signal.SIGKILL)
        await server.want(again(spec, 4, hold=True))
        await new_agent(node, server, *words)
        held = await told(server, PLACED, 4)
        assert held.pid is None
        assert not lives(ready.pid)
        assert node.engines() == []
        await server.want(again(spec, 4))
        back = await told(server, READY, 4)
        assert back.pid != ready.pid
        seen = [one for report in server.reports for one in report.shards if one.generation == 4]
        assert ready.pid not in {one.pid for one in seen}

    tell(story)


def test_what_is_known_by_its_marks_alone_is_of_no_start_that_is_still_held(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """Nothing of a held start has begun, so it is of the one before, and in its way."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks(generation=3)
        # It goes on for 10 s after SIGTERM: time to lose the agent and what it had written.
        stubborn = replace(spec.profile, args=(*spec.profile.args, "--ignore-sigterm"))
        spec = replace(spec, profile=stubborn)
        await server.want(spec)
        ready = await told(server, READY, 3)
        await server.want(again(spec, 4, hold=True))
        await told(server, ReplicaState.DRAINING, 3)
        await node.end(signal.SIGKILL)
        Shelf(node.directory / "agent" / "shards").remove("p1", 1)
        await new_agent(node, server, *words)
        await told(server, PLACED, 4)
        assert not lives(ready.pid)
        assert not [
            one
            for report in server.reports
            for one in report.shards
            if one.generation == 4 and one.state is not PLACED
        ]

    tell(story)


def test_a_record_of_an_older_agent_is_of_the_start_that_its_engine_was_told(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        _, spec = ranks()
        await server.want(spec)
        ready = await told(server, READY, 0)
        await node.end(signal.SIGKILL)
        shelf = Shelf(node.directory / "agent" / "shards")
        (kept,) = shelf.read()
        assert isinstance(kept, Kept)
        assert kept.generation == 0
        shelf.write(replace(kept, generation=None))
        await new_agent(node, server, *words)
        adopted = await told(server, READY, 0)
        assert adopted.pid == ready.pid
        await server.want(again(spec, 1, hold=True))
        await told(server, PLACED, 1)
        assert not lives(ready.pid)

    tell(story)


@pytest.mark.parametrize("which", ["port", "group_port"])
def test_a_taken_port_of_rank_0_is_told_by_its_number_and_both_start_with_others(
    tell: Tell, words: tuple[str, ...], which: str
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        with socket.create_server(("127.0.0.1", 0)) as somebody:
            port = somebody.getsockname()[1]
            first, second = ranks(**{which: port})
            await server.want(first, second)
            taken = await server.until(
                lambda: one if (one := rank_of(server, 0)) and one.port_taken else None
            )
            assert (taken.state, taken.pid) == (PLACED, None)
            assert taken.cause == f"port {port} of 127.0.0.1 is taken"
            # Rank 1 listens nowhere: it waits for rank 0.
            other = await told(server, READY, 0)
            assert not other.port_taken
            moved, group_port = free_port(), free_port()
            first = replace(again(first, 1, hold=True), port=moved, group_port=group_port)
            second = replace(again(second, 1, hold=True), group_port=group_port)
            await server.want(first, second)
            held = await told(server, PLACED, 1, rank=0)
            assert (held.cause, held.port_taken) == (None, False)
            await told(server, PLACED, 1)
            assert node.engines() == []
            await server.want(again(first, 1), again(second, 1))
            ready = await told(server, READY, 1, rank=0)
            assert (ready.port, ready.restarts, ready.cause) == (moved, 0, None)
            both = await told(server, READY, 1)
            assert both.pid != other.pid
        await server.want(stop=("p1",))
        await server.until(lambda: (one := rank_of(server, 0)) and one.state is STOPPED)
        assert node.engines() == []

    tell(story)
