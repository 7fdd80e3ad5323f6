import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx2

from agent.conftest import Story
from agent.node import KEY, Node, shard, small_model
from agent.wire_server import WireServer
from roost.domain.replica import ReplicaState

Tell = Callable[[Story], None]


def test_a_real_engine_becomes_ready_answers_with_its_key_and_stops_without_a_trace(
    tell: Tell,
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        spec = shard()
        await server.want(spec)
        ready = await server.state("p1", ReplicaState.READY)
        assert ready.port == spec.port
        assert ready.restarts == 0
        assert ready.slots == 1
        assert ready.spec is None
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        url = f"http://127.0.0.1:{spec.port}/v1/chat/completions"
        async with httpx2.AsyncClient(timeout=60) as http:
            refused = await http.post(url, json=body)
            answer = await http.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"})
        assert refused.status_code == 401
        assert answer.json()["choices"][0]["message"]["content"]
        load = (await server.told(lambda s: s.load is not None and s.load.running == 0)).load
        assert load is not None
        assert (load.waiting, load.kv_usage) == (0, None)
        await server.want(stop=("p1",))
        await server.state("p1", ReplicaState.STOPPED)
        assert node.engines() == []
        assert list((node.directory / "agent" / "shards").iterdir()) == []
        assert list((node.directory / "agent" / "logs").iterdir()) == []
        await server.want()
        await server.until(lambda: server.shard("p1") is None)
        assert await node.end() == 0

    tell(story)


def test_a_model_that_is_missing_is_said_and_served_once_it_is_there(
    tell: Tell, tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        models = tmp_path / "models"
        models.mkdir()
        await node.start("--join", "token-1", "--model-dir", str(models))
        inside = shard("inside", source="m.gguf")
        absolute = shard("absolute", source=str(models / "m.gguf"))
        await server.want(inside, absolute)
        failed = await server.told(lambda s: s.cause is not None, "inside")
        assert failed.cause == f"no m.gguf in the model directories of this node ({models})"
        failed = await server.told(lambda s: s.cause is not None, "absolute")
        said = f"exit status 1: cannot open the model file {models / 'm.gguf'}: no such file"
        assert failed.cause is not None
        assert failed.cause.startswith(said)
        (models / "m.gguf").symlink_to(small_model())
        await server.state("inside", ReplicaState.READY)
        await server.state("absolute", ReplicaState.READY)

    tell(story)


def test_a_killed_engine_is_back_in_place_with_a_cause_and_a_killed_agent_adopts_it(
    tell: Tell,
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        spec = shard()
        await server.want(spec)
        first = await server.state("p1", ReplicaState.READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        again = await server.told(lambda s: s.restarts == 1 and s.state == ReplicaState.READY)
        assert again.pid != first.pid
        assert again.port == first.port
        assert again.cause is not None
        assert "SIGKILL" in again.cause
        await node.end(signal.SIGKILL)
        count = len(server.reports)
        await node.start()
        report = await server.until(
            lambda: server.reports[-1] if len(server.reports) > count else None
        )
        (adopted,) = report.shards
        assert (adopted.pid, adopted.state, adopted.restarts) == (again.pid, "ready", 1)
        assert await node.end() == 0
        assert node.engines() == [again.pid]

    tell(story)
