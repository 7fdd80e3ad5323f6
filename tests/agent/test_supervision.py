"""Engines that misbehave, under a real agent process: `roost.testing.fake_engine` stands for
llama-server.
"""

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from agent.conftest import Story
from agent.node import KEY, Node, fake_llama_server, free_port, shard
from agent.wire_server import WireServer
from roost.agent.supervise import procfs
from roost.agent.supervise.kept import Kept, Shelf
from roost.domain.replica import ReplicaState, ShardSpec
from roost.testing.fake_nvml import FakeProcess, eight_h100

Tell = Callable[[Story], None]

NOBODY = 2**22 + 1
"""Above the largest process id that Linux gives."""


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """The agent's, with the fake engine as its llama-server."""
    return ("--join", "token-1", "--llama-server", str(fake_llama_server(tmp_path)))


def fake(placement: str = "p1", *args: str, **changes: object) -> ShardSpec:
    return shard(placement, source="/models/none.gguf", args=args, **changes)


def lives(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.lives


def test_children_that_outlive_their_engine_are_gone_before_the_next_start(
    tell: Tell, words: tuple[str, ...], tmp_path: Path
) -> None:
    """B027: workers that outlive a killed parent hold its memory; none is there at the next start."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        file = tmp_path / "children"
        spec = fake(
            "p1", *("--children", "2", "--stray-children", "1", "--children-file", str(file))
        )
        await server.want(spec)
        first = await server.state("p1", ReplicaState.READY)
        children = [int(pid) for pid in file.read_text().split()]
        assert len(children) == 3
        assert all(lives(pid) for pid in children)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        assert not any(lives(pid) for pid in children)
        again = [int(pid) for pid in file.read_text().split()]
        assert set(again).isdisjoint(children)
        await server.want(stop=("p1",))
        await server.state("p1", ReplicaState.STOPPED)
        assert not any(lives(pid) for pid in again)
        assert node.engines() == []

    tell(story)


@pytest.mark.parametrize("end", ["it is stopped", "its launcher is killed"])
def test_schedulers_that_outlive_the_launcher_of_sglang_are_ended_with_it(
    tell: Tell, tmp_path: Path, end: str
) -> None:
    """B027: the launcher goes first, and its group is left with what holds the cards."""
    python = tmp_path / "python"
    # Roost gives `-c PROGRAM` first, which its stand-in has no use for.
    fake_engine = "-P -m roost.testing.fake_engine --dialect sglang"
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {shlex.quote(sys.executable)} {fake_engine} "$@"\n'
    )
    python.chmod(0o755)

    async def story(server: WireServer, node: Node) -> None:
        await node.start("--join", "token-1", "--sglang", str(python))
        file = tmp_path / "children"
        await server.want(
            fake("p1", "--children", "3", "--children-file", str(file), engine="sglang")
        )
        ready = await server.state("p1", ReplicaState.READY)
        schedulers = [int(pid) for pid in file.read_text().split()]
        assert len(schedulers) == 3
        assert all(lives(pid) for pid in schedulers)
        if end == "its launcher is killed":
            assert ready.pid is not None
            os.kill(ready.pid, signal.SIGKILL)
            await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
            assert not any(lives(pid) for pid in schedulers)
            schedulers = [int(pid) for pid in file.read_text().split()]
        await server.want(stop=("p1",))
        await server.state("p1", ReplicaState.STOPPED)
        assert not any(lives(pid) for pid in schedulers)
        assert node.engines() == []

    tell(story)


def test_a_crash_loop_is_slow_names_its_cause_and_spares_the_others(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """B032: a constructor that always fails; another profile of it is started at once."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        bad = fake(
            "bad", "--exit-after", "0", "--exit-code", "3", "--stderr", "bad config key: sharding"
        )
        await server.want(bad, fake("good"))
        first = await server.told(lambda s: s.due is not None, "bad")
        assert first.cause == "exit status 3: bad config key: sharding"
        again = await server.told(lambda s: s.due is not None and s.restarts == 2, "bad")
        assert again.state is ReplicaState.FAILED
        assert again.cause == f"crash-looping, 3 failures in a row, {first.cause}"
        # After the third failure in a row 4 s, less up to a quarter.
        assert again.due is not None
        assert 3 <= again.due - again.since <= 4
        good = await server.state("good", ReplicaState.READY)
        assert good.restarts == 0
        # Another placement of the same model works: it is started at once, whatever the old one's
        # delay.
        await server.want(fake("good"), fake("fixed"), stop=("bad",))
        await server.state("fixed", ReplicaState.READY)
        await server.state("bad", ReplicaState.STOPPED)

    tell(story)


def test_exit_status_0_is_a_failure_and_the_engine_comes_back(
    tell: Tell, words: tuple[str, ...], tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        once = ("--exit-after", "0.3", "--exit-code", "0", "--once-file", str(tmp_path / "once"))
        await server.want(fake("p1", *once))
        back = await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        assert back.cause is not None
        assert back.cause.startswith("ended by itself with exit status 0")

    tell(story)


@pytest.mark.parametrize("while_loading", [(), ("--refuse-while-loading",)])
def test_a_load_longer_than_its_limit_of_silence_is_no_failure_while_it_shows_life(
    tell: Tell, words: tuple[str, ...], while_loading: tuple[str, ...]
) -> None:
    """B028: slow, and with a listener or without one, as while it downloads."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        args = ("--load-s", "2.5", "--load-lines", "0.2", *while_loading)
        await server.want(fake("p1", *args, load_timeout_s=1))
        state = ReplicaState.STARTING if while_loading else ReplicaState.LOADING
        await server.state("p1", state)
        ready = await server.state("p1", ReplicaState.READY)
        assert ready.restarts == 0
        assert ready.cause is None

    tell(story)


def test_an_engine_that_never_becomes_ready_is_given_up_with_its_last_state(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """B028: said with its limit, and tried again by the same agent."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        await server.want(fake("p1", "--load-s", "600", "--refuse-while-loading", load_timeout_s=1))
        failed = await server.told(lambda s: s.restarts >= 1)
        assert failed.cause == "not ready within 1 s of silence, last state: starting"

    tell(story)


@pytest.mark.parametrize("by", ["a listener", "an outgoing connection"])
def test_a_taken_port_is_told_and_another_one_is_used_at_once_without_a_restart(
    tell: Tell, words: tuple[str, ...], by: str
) -> None:
    """B030: whoever has it, it is no failure of the engine's."""

    async def story(server: WireServer, node: Node) -> None:
        with socket.socket() as taken, socket.create_server(("127.0.0.1", 0)) as other_end:
            taken.bind(("127.0.0.1", 0))
            if by == "a listener":
                taken.listen()
            else:
                taken.connect(other_end.getsockname())
            port = taken.getsockname()[1]
            await node.start(*words)
            await server.want(fake("p1", port=port))
            told_it = await server.told(lambda s: s.port_taken)
            assert told_it.state is ReplicaState.PLACED
            assert told_it.cause is not None
            assert f"port {port}" in told_it.cause
            # Not started at all: whoever has the port might answer for it.
            assert node.engines() == []
            assert told_it.pid is None
            other = free_port()
            await server.want(fake("p1", port=other))
            ready = await server.state("p1", ReplicaState.READY)
        assert ready.port == other
        assert ready.restarts == 0
        assert not ready.port_taken

    tell(story)


def test_a_port_that_was_closed_a_moment_ago_is_used_again_at_once(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """B030: what is left of its connections (TIME_WAIT) hinders no listener."""

    async def story(server: WireServer, node: Node) -> None:
        with socket.create_server(("127.0.0.1", 0)) as before:
            port = before.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted, _ = before.accept()
                accepted.close()  # the side that closes first keeps the port's remains
                assert client.recv(1) == b""
        await node.start(*words)
        await server.want(fake("p1", port=port))
        ready = await server.state("p1", ReplicaState.READY)
        assert (ready.port, ready.restarts, ready.cause) == (port, 0, None)
        assert not any(s.port_taken for report in server.reports for s in report.shards)

    tell(story)


def test_an_address_that_is_not_this_machines_is_no_taken_port(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        # A documentation address (RFC 5737): nobody's.
        await server.want(replace(fake("p1"), host="192.0.2.1"))
        failed = await server.state("p1", ReplicaState.FAILED)
        assert not failed.port_taken
        assert failed.cause is not None
        assert "cannot listen on 192.0.2.1: no address of this machine" in failed.cause

    tell(story)


def test_a_stop_drains_what_is_in_flight_and_the_stream_ends_whole(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """B033: SIGTERM comes after the last stream, not before."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1", "--tokens-per-s", "10", drain_timeout_s=60)
        await server.want(spec)
        await server.state("p1", ReplicaState.READY)
        url = f"http://127.0.0.1:{spec.port}/v1/chat/completions"
        body = {"messages": [], "max_tokens": 15, "stream": True}
        async with (
            httpx2.AsyncClient(timeout=60) as http,
            http.stream(
                "POST", url, json=body, headers={"Authorization": f"Bearer {KEY}"}
            ) as answer,
        ):
            lines = answer.aiter_lines()
            await anext(lines)
            await server.want(stop=("p1",))
            await server.state("p1", ReplicaState.DRAINING)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        await server.state("p1", ReplicaState.STOPPED)

    tell(story)


def test_a_stream_longer_than_the_drain_limit_is_cut_in_sight_and_the_stop_ends(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """B033: its reader sees an error, never an answer that seems whole."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1", "--tokens-per-s", "5", drain_timeout_s=1)
        await server.want(spec)
        await server.state("p1", ReplicaState.READY)
        url = f"http://127.0.0.1:{spec.port}/v1/chat/completions"
        body = {"messages": [], "max_tokens": 100_000, "stream": True}
        lines: list[str] = []

        async def read() -> None:
            async with (
                httpx2.AsyncClient(timeout=60) as http,
                http.stream(
                    "POST", url, json=body, headers={"Authorization": f"Bearer {KEY}"}
                ) as answer,
            ):
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if len(lines) == 1:
                        await server.want(stop=("p1",))

        with pytest.raises(httpx2.HTTPError):
            await read()
        assert lines
        assert "data: [DONE]" not in lines
        await server.state("p1", ReplicaState.STOPPED)
        assert node.engines() == []
        assert "1 requests in flight after 1 s of draining" in node.log.read_text()

    tell(story)


def test_a_stop_is_over_when_the_driver_lists_no_process_of_it_any_more(
    tell: Tell, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B027: the server gives the GPU away as soon as the engine is reported as stopped."""
    cards = tmp_path / "cards.json"
    machine = eight_h100()
    uuid = machine.cards[0].uuid
    machine.save(cards)
    monkeypatch.setenv("ROOST_FAKE_NVML", str(cards))

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = replace(fake("p1"), gpus=(0,), gpu_uuids=(uuid,))
        await server.want(spec)
        await server.state("p1", ReplicaState.READY)
        # No such process exists: what the driver still has to let go, for a while.
        machine.but(0, processes=(FakeProcess(pid=NOBODY),)).save(cards)
        await server.want(stop=("p1",))
        waits = await server.told(lambda s: s.cause is not None)
        assert (waits.state, waits.pid) == (ReplicaState.DRAINING, None)
        assert waits.cause == f"no process lives; the GPU driver still lists process {NOBODY}"
        assert node.engines() == []
        # Somebody else's is no reason to wait.
        machine.but(0, processes=(FakeProcess(pid=os.getpid()),)).save(cards)
        stopped = await server.state("p1", ReplicaState.STOPPED)
        assert stopped.cause is None

    tell(story)


def test_an_engine_that_ignores_sigterm_is_killed_with_its_children(
    tell: Tell, words: tuple[str, ...]
) -> None:
    """B027: also when it is stopped."""

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        await server.want(fake("p1", "--ignore-sigterm", "--children", "1"))
        ready = await server.state("p1", ReplicaState.READY)
        await server.want(stop=("p1",))
        await server.state("p1", ReplicaState.STOPPED)
        assert ready.pid is not None
        assert not lives(ready.pid)
        assert node.engines() == []

    tell(story)


def test_an_engine_whose_number_was_never_written_down_is_found_by_its_marks(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1")
        await server.want(spec)
        ready = await server.state("p1", ReplicaState.READY)
        await node.end(signal.SIGKILL)
        # As if the agent had died between making the process and writing its number.
        shelf = Shelf(node.directory / "agent" / "shards")
        shelf.write(Kept(spec=spec, up=True, boot_id=procfs.boot_id(), starts=1))
        await node.start(*words)
        await server.next_report()
        adopted = await server.state("p1", ReplicaState.READY)
        assert (adopted.pid, adopted.restarts) == (ready.pid, 0)
        # And as if the whole file had been lost.
        await node.end(signal.SIGKILL)
        shelf.remove("p1", 0)
        await node.start(*words)
        await server.next_report()
        adopted = await server.state("p1", ReplicaState.READY)
        assert adopted.pid == ready.pid
        assert len(node.engines()) == 1

    tell(story)


def test_an_engine_that_ended_while_the_agent_was_away_is_started_again_and_the_status_is_unknown(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        await server.want(fake("p1"))
        ready = await server.state("p1", ReplicaState.READY)
        await node.end(signal.SIGKILL)
        assert ready.pid is not None
        os.kill(ready.pid, signal.SIGKILL)
        await node.start(*words)
        back = await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        assert back.cause is not None
        assert "exit status not known" in back.cause

    tell(story)


def test_an_adopted_engine_that_ends_is_seen_at_once_and_started_again(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        await server.want(fake("p1"))
        ready = await server.state("p1", ReplicaState.READY)
        await node.end()
        assert ready.pid is not None
        assert lives(ready.pid)
        await node.start(*words)
        await server.next_report()
        os.kill(ready.pid, signal.SIGKILL)
        back = await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        assert back.pid != ready.pid
        assert back.cause is not None
        assert "exit status not known" in back.cause

    tell(story)


def test_engines_go_on_being_supervised_with_no_server_also_by_a_new_agent(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1")
        await server.want(spec)
        ready = await server.state("p1", ReplicaState.READY)
        server.mode = "reset"
        await node.end()
        assert ready.pid is not None
        os.kill(ready.pid, signal.SIGKILL)
        await node.start(*words)
        url = f"http://127.0.0.1:{spec.port}/health"
        async with httpx2.AsyncClient(timeout=5) as http, asyncio.timeout(60):
            while True:
                try:
                    if (await http.get(url)).status_code == 200:
                        break
                except httpx2.HTTPError:
                    await asyncio.sleep(0.1)
        server.mode = "ok"
        await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)

    tell(story)


def test_what_nobody_speaks_of_is_left_running_and_reported_with_its_spec(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1")
        await server.want(spec)
        ready = await server.state("p1", ReplicaState.READY)
        await server.want()
        orphan = await server.told(lambda s: s.spec is not None)
        assert orphan.spec == spec
        assert (orphan.pid, orphan.state) == (ready.pid, ReplicaState.READY)
        # It stays one for the next agent, and the server may take it back.
        await node.end(signal.SIGKILL)
        await node.start(*words)
        await server.next_report()
        orphan = await server.told(lambda s: s.spec is not None)
        assert (orphan.pid, orphan.state) == (ready.pid, ReplicaState.READY)
        await server.want(spec)
        adopted = await server.told(lambda s: s.spec is None)
        assert adopted.pid == ready.pid

    tell(story)


def test_stop_engines_drains_and_stops_them_and_ends_with_0(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words, "--stop-engines")
        await server.want(fake("p1"), fake("p2"))
        await server.state("p1", ReplicaState.READY)
        await server.state("p2", ReplicaState.READY)
        assert await node.end() == 0
        assert node.engines() == []
        assert {s.state for s in server.reports[-1].shards} == {ReplicaState.STOPPED}
        # The desired state still has them: the next agent starts them before it has heard anything.
        await node.start(*words)
        await server.next_report()
        await server.state("p1", ReplicaState.READY)

    tell(story)


def test_asked_a_second_time_it_kills_engines_that_do_not_end(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        agent = await node.start(*words, "--stop-engines")
        stubborn = fake("p1", "--ignore-sigterm", drain_timeout_s=3600)
        await server.want(stubborn)
        await server.state("p1", ReplicaState.READY)
        reader, writer = await asyncio.open_connection("127.0.0.1", stubborn.port)
        body = b'{"model": "fake", "stream": true, "max_tokens": 1000000, "messages": []}'
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
        )
        assert await reader.readuntil(b"data:")
        agent.terminate()
        await server.state("p1", ReplicaState.DRAINING)
        agent.terminate()
        assert await agent.wait() == 0
        assert node.engines() == []
        # Neither the drain nor the grace between SIGTERM and SIGKILL was waited for.
        assert "still there 0 s after SIGTERM" in node.log.read_text()
        writer.close()

    tell(story)


def test_followed_logs_take_no_connection_from_reports_and_end_when_nobody_reads(
    tell: Tell, words: tuple[str, ...]
) -> None:
    from roost.formats.agent_wire import LogOrder

    def of_logs(node: Node) -> int:
        assert node.process is not None
        files = (file.resolve() for file in Path(f"/proc/{node.process.pid}/fd").iterdir())
        return sum(file.suffix == ".log" and file.parent.name == "logs" for file in files)

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        await server.want(fake("p1"))
        await server.state("p1", ReplicaState.READY)
        names = {f"log-{number}" for number in range(20)}
        for name in names:
            await server.order(LogOrder(id=name, placement="p1", follow=True))
        await server.until(lambda: names <= server.logs.keys() or None)
        for _ in range(3):
            await server.next_report()
        assert of_logs(node) == len(names)
        await server.answer_logs()
        await server.until(lambda: of_logs(node) == 0)
        await server.next_report()

    tell(story)


def test_a_log_can_be_read_followed_and_asked_for_after_a_restart(
    tell: Tell, words: tuple[str, ...], tmp_path: Path
) -> None:
    from roost.formats.agent_wire import LogOrder

    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        args = ("--exit-after", "1", "--stderr", f"first run, {KEY}", "--once-file")
        await server.want(fake("p1", *args, str(tmp_path / "once")))
        await server.order(LogOrder(id="a", placement="p1", follow=True))
        await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        await server.order(LogOrder(id="b", placement="p1", previous=True))
        await server.order(LogOrder(id="e", placement="p1", runs_back=1))
        await server.order(LogOrder(id="f", placement="p1", runs_back=2))
        await server.order(LogOrder(id="c", placement="p1", tail_lines=1))
        await server.order(LogOrder(id="d", placement="unknown"))
        await server.until(lambda: {"b", "c", "d", "e", "f"} <= server.ended_logs or None)
        assert b"first run, ***" in server.logs["b"]
        assert server.logs["e"] == server.logs["b"]
        assert b"no log of a run 2 before the present one" in server.logs["f"]
        assert server.logs["c"].count(b"\n") == 1
        assert b"listening on" in server.logs["c"]
        assert b"no shard" in server.logs["d"]
        await server.until(lambda: server.logs["a"].count(b"listening on") == 2 or None)
        assert b"started again" in server.logs["a"]
        assert KEY.encode() not in b"".join(server.logs.values())
        await server.want(stop=("p1",))
        await server.until(lambda: "a" in server.ended_logs or None)

    tell(story)


def test_a_series_that_a_page_lacks_is_said_in_its_report_and_once_in_the_log(
    tell: Tell, tmp_path: Path
) -> None:
    """B035: the gauge was renamed; a restart brings the same page, and no second warning."""
    vllm = tmp_path / "vllm"
    python = shlex.quote(sys.executable)
    vllm.write_text(f'#!/bin/sh\nexec {python} -P -m roost.testing.fake_engine "$@"\n')
    vllm.chmod(0o755)
    page = tmp_path / "page"
    page.write_text(
        "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:cache_fill 0.9\n"
    )
    missing = "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc"

    async def story(server: WireServer, node: Node) -> None:
        await node.start("--join", "token-1", "--vllm", str(vllm))
        renamed = fake("renamed", "--metrics-file", str(page), engine="vllm")
        await server.want(renamed, fake("whole", engine="vllm"))
        for restarts in range(2):
            seen = await server.told(
                lambda s, r=restarts: s.restarts == r and s.load is not None,  # type: ignore[misc]
                "renamed",
            )
            assert seen.load is not None
            assert (seen.load.running, seen.load.waiting, seen.load.kv_usage) == (2, 1, None)
            assert seen.unmeasured == (missing,)
            assert seen.state is ReplicaState.READY
            assert seen.pid is not None
            os.kill(seen.pid, signal.SIGKILL)
        whole = await server.told(lambda s: s.load is not None, "whole")
        assert whole.load is not None
        assert (whole.load.kv_usage, whole.unmeasured) == (0, ())
        said = [line for line in node.log.read_text().splitlines() if "load.not_measured" in line]
        assert len(said) == 1
        assert '"replica": "small-renamed"' in said[0]
        assert missing in said[0]

    tell(story)
