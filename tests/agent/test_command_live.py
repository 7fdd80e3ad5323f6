"""Engine `command` in a real agent: a program of the operator's own, and none without its leave."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2

from agent.conftest import Story
from agent.node import KEY, Node, shard
from agent.wire_server import WireServer
from roost.agent.supervise import procfs
from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import ReplicaState, ShardSpec

Tell = Callable[[Story], None]

ALLOWED = ("--join", "token-1", "--allow-command")
FAKE = (sys.executable, "-m", "roost.testing.fake_engine", "--host", "{host}", "--port", "{port}")
LOAD = MetricNames(
    running=("llamacpp:requests_processing",), waiting=("llamacpp:requests_deferred",)
)


def command(*words: str, placement: str = "p1", **changes: object) -> ShardSpec:
    """A shard of engine `command`; without words it is the fake engine."""
    spec = shard(placement, args=())
    profile = replace(
        spec.profile,
        engine=Engine.COMMAND,
        source="",
        command=words or FAKE,
        **changes,  # type: ignore[arg-type]  # by name
    )
    return replace(spec, profile=profile)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_command_serves_with_its_key_reports_its_load_and_stops_without_a_trace(
    tell: Tell,
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*ALLOWED)
        spec = command(*FAKE, "--alias", "{model}", "--load-s", "0.5", metrics=LOAD, slots=3)
        await server.want(spec)
        ready = await server.state("p1", ReplicaState.READY)
        assert (ready.port, ready.restarts, ready.slots) == (spec.port, 0, None)
        assert "command" in (server.reports[-1].facts.engines or ())
        url = f"http://127.0.0.1:{spec.port}/v1/chat/completions"
        async with httpx2.AsyncClient(timeout=60) as http:
            refused = await http.post(url, json={})
            answer = await http.post(url, json={}, headers={"Authorization": f"Bearer {KEY}"})
        assert refused.status_code == 401
        assert answer.json()["model"] == "small"
        await server.told(
            lambda s: s.load is not None and (s.load.running, s.load.waiting) == (0, 0)
        )
        assert ready.pid is not None
        assert KEY.encode() not in command_line(ready.pid)
        await server.want(stop=("p1",))
        await server.state("p1", ReplicaState.STOPPED)
        assert node.engines() == []

    tell(story)


def test_its_words_are_filled_in_and_no_shell_reads_them(tell: Tell, tmp_path: Path) -> None:
    async def story(server: WireServer, node: Node) -> None:
        models = tmp_path / "models $(touch x); 'q"
        models.mkdir()
        (models / "bge {port}").mkdir()
        await node.start(*ALLOWED, "--model-dir", str(models))
        say = "import sys; print(*sys.argv[1:], sep='|'); sys.exit(3)"
        words = (sys.executable, "-c", say, "{source}", "a b", "${HOME}", "{gpus}", "*")
        spec = command(*words)
        spec = replace(spec, profile=replace(spec.profile, source="bge {port}"))
        await server.want(spec)
        failed = await server.told(lambda s: s.cause is not None)
        assert failed.cause == f"exit status 3: {models}/bge {{port}}|a b|${{HOME}}||*"

    tell(story)
    assert list(tmp_path.glob("**/x")) == []


def test_a_model_of_the_hub_is_left_to_the_command_and_a_missing_program_is_named(
    tell: Tell,
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*ALLOWED)
        hub = command(sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", "{source}")
        hub = replace(hub, profile=replace(hub.profile, source="hf:BAAI/bge-m3"))
        await server.want(hub, command("/opt/none/such", placement="p2"))
        failed = await server.told(lambda s: s.cause is not None)
        assert failed.cause == "exit status 1: BAAI/bge-m3"
        failed = await server.told(lambda s: s.cause is not None, "p2")
        assert failed.cause == "cannot start /opt/none/such: no such file or directory"

    tell(story)


def test_an_agent_that_was_not_allowed_to_runs_no_command_and_says_how(
    tell: Tell, tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        ran = tmp_path / "ran"
        await node.start()
        await server.want(
            command(sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", str(ran))
        )
        failed = await server.told(lambda s: s.cause is not None)
        assert failed.cause == (
            "this agent runs no commands: start it with --allow-command to let it"
        )
        assert failed.pid is None
        assert "command" not in (server.reports[-1].facts.engines or ())
        assert not ran.exists()

    tell(story)


def test_a_command_that_runs_is_left_running_by_an_agent_that_may_no_longer_start_it(
    tell: Tell,
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*ALLOWED)
        await server.want(command(metrics=LOAD))
        before = await server.state("p1", ReplicaState.READY)
        await node.end()
        count = len(server.reports)
        await node.start("--join", "token-1")
        report = await server.until(
            lambda: server.reports[-1] if len(server.reports) > count else None
        )
        (adopted,) = report.shards
        assert (adopted.pid, adopted.state) == (before.pid, ReplicaState.READY)
        assert before.pid is not None
        assert procfs.stat(before.pid) is not None

    tell(story)


def test_other_names_of_its_load_reach_an_engine_that_runs(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*ALLOWED)
        spec = command()
        await server.want(spec)
        first = await server.state("p1", ReplicaState.READY)
        assert first.load is None
        await server.want(replace(spec, metrics=LOAD))
        told = await server.told(lambda s: s.load is not None)
        assert told.load is not None
        assert (told.load.running, told.load.waiting, told.load.kv_usage) == (0, 0, None)
        assert (told.pid, told.restarts) == (first.pid, 0)

    tell(story)
