"""The real vLLM on two nodes: one tensor-parallel replica over two agents, without Ray.

Run where there is one: `ROOST_TEST_VLLM=DIR pytest -m slow tests/e2e/test_vllm_two_nodes.py`
(docs/how-to/add-an-engine.md). Both nodes' cards are made up; it computes on the CPU.
"""

import json
import os
import signal
import socket
from pathlib import Path

import openai
import pytest

from fleet import Fleet, two_nodes
from marked import living, marked, marks_of
from real_vllm import ARGS, ENV, directory, give_way, make_tiny
from running import wait_for
from streaming import Streaming

CATALOG = f"""\
models:
- name: wide
  aliases: [broad]
  profiles:
  - name: two-nodes
    engine: vllm
    source: tiny
    gpu_class: h100-80gb-hbm3
    gpus_per_node: 1
    nodes: 2
    tensor_parallel: 2
    pipeline_parallel: 1
    slots: 4
    drain_timeout_s: 30
    args: {ARGS}
    env: {ENV}
"""


def listens(fleet: Fleet) -> list[tuple[str, int]]:
    """Where the ranks listen, by what their agents keep."""
    files = sorted(fleet.folder.glob("node-*/state/agent/shards/*.json"))
    specs = [json.loads(file.read_text())["spec"] for file in files]
    assert sorted(spec["rank"] for spec in specs) == [0, 1]
    return [(spec["host"], port) for spec in specs for port in (spec["port"], spec["group_port"])]


def is_free(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
            one.listen()
        except OSError:
            return False
    return True


def chat(fleet: Fleet) -> None:
    """An answer under each of its names, called so."""
    fleet.ask()
    client = openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0)
    for name in ("wide", "broad"):
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "?"}], max_tokens=4
        )
        assert answer.model == name
        assert answer.choices[0].message.content


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_vllm_over_two_agents_answers_is_measured_restarts_whole_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    bin_ = directory()
    make_tiny(bin_, tmp_path / "models" / "tiny")
    vllm = give_way(bin_, tmp_path / "bin")
    path = f"{bin_}:{os.environ['PATH']}"
    with two_nodes(tmp_path, model="wide", vllm=vllm, PATH=path) as fleet:
        fleet.ctl("apply", "-f", "-", text=CATALOG)
        first = fleet.ready(limit_s=600)
        ours = marks_of(first[0])["ROOST_FLEET"]
        assert sorted(shard["node"] for shard in fleet.row()["shards"]) == ["node-0", "node-1"]
        chat(fleet)

        row = wait_for(lambda: row if (row := fleet.row())["running"] == 0 else None)
        assert (row["running"], row["waiting"], row["kv_usage"]) == (0, 0, 0)
        assert fleet.key is not None
        stream = Streaming(fleet.url, fleet.key, model="wide", tokens=12_000).begin()
        row = wait_for(lambda: row if (row := fleet.row())["running"] == 1 else None)
        assert row["waiting"] == 0
        assert 0 < row["kv_usage"] < 0.1
        stream.leave()
        wait_for(lambda: fleet.row()["running"] == 0)

        # Its worker lives on when rank 1's first process is killed, and rank 0 answers still.
        old = marked(ROOST_FLEET=ours)
        assert len(marked(ROOST_FLEET=ours, ROOST_RANK="1")) > 1
        os.kill(first[1], signal.SIGKILL)
        wait_for(lambda: str(fleet.row()["cause"]).startswith("rank 1 on node-"))
        second = fleet.ready(without=first, limit_s=600)
        assert living(old) == []
        assert fleet.row()["cause"] is None
        chat(fleet)

        last, where = marked(ROOST_FLEET=ours), listens(fleet)
        assert {pid for pid, _ in last} > set(second)
        assert not any(is_free(*one) for one in where[:1])
        fleet.ctl("delete", "wide")
        wait_for(lambda: not fleet.row(), limit_s=120)
        assert living(last) == []
        assert marked(ROOST_FLEET=ours) == frozenset()
        assert [one for one in where if not is_free(*one)] == []
