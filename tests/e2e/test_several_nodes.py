"""A replica on two nodes: two agents on two loopback addresses, and an engine of two ranks.

The ranks are stand-ins that take vLLM's own command lines and meet at rank 0's address.
"""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet import Fleet, two_nodes
from running import alive, wait_for

FAKE = f"exec {shlex.quote(sys.executable)} -P -m roost.testing.fake_engine"
CATALOG = """\
models:
- name: wide
  profiles:
  - name: two-nodes
    engine: vllm
    source: tiny
    gpu_class: h100-80gb-hbm3
    gpus_per_node: 1
    nodes: 2
    tensor_parallel: 2
    pipeline_parallel: 1
    drain_timeout_s: 20
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    vllm = tmp_path / "vllm"
    vllm.write_text(f'#!/bin/sh\n{FAKE} --loss-s 0.2 "$@"\n')
    vllm.chmod(0o755)
    # The least: four reports.
    with two_nodes(tmp_path, model="wide", vllm=vllm, server=("--lost-after", "20")) as fleet:
        yield fleet


def test_two_ranks_start_fail_and_stop_together(fleet: Fleet) -> None:
    fleet.ctl("apply", "-f", "-", text=CATALOG)
    first = fleet.ready()
    assert sorted(shard["node"] for shard in fleet.row()["shards"]) == ["node-0", "node-1"]
    assert fleet.ask().text.split() == ["w0", "w1", "w2"]

    os.kill(first[1], signal.SIGKILL)
    second = fleet.ready(without=first)
    assert not any(alive(pid) for pid in first)
    assert fleet.ask().text.split() == ["w0", "w1", "w2"]

    os.kill(second[0], signal.SIGKILL)
    third = fleet.ready(without=[*first, *second])
    assert not any(alive(pid) for pid in second)

    fleet.ctl("delete", "wide")
    wait_for(lambda: not fleet.row())
    assert not any(alive(pid) for pid in third)


@pytest.mark.timeout(300)
def test_with_a_lost_node_its_ranks_fellow_ends_and_what_it_held_is_free(fleet: Fleet) -> None:
    fleet.ctl("apply", "-f", "-", text=CATALOG)
    first = fleet.ready()
    old = fleet.row()
    left, lost = (shard["node"] for shard in old["shards"])
    fleet.kill_agent(lost)
    os.kill(first[1], signal.SIGKILL)

    def stopping() -> dict[str, Any] | None:
        row = next((row for row in fleet.rows() if row["placement"] == old["placement"]), {})
        return row if [shard["node"] for shard in row.get("shards", ())] == [lost] else None

    # Rank 0 had nobody to tell it, until the node was lost; then it was ended, and only what the
    # lost node may still run is held.
    because = wait_for(stopping, limit_s=90)["because"]
    assert because.startswith(f"{lost} is silent for ")
    assert not alive(first[0])
    held = json.loads(fleet.ctl("nodes", "-o", "json"))["allocations"]
    assert [(one["node"], one["state"]) for one in held] == [(lost, "stopping")]
    (waiting,) = (row for row in fleet.rows() if row["placement"] != old["placement"])
    assert (waiting["state"], waiting["shards"]) == ("pending", [])
    assert waiting["cause"] == "no profile fits: ib0 has 1 node that fits, needs 2"

    fleet.start_agent(int(lost.removeprefix("node-")))
    fleet.ready(without=first)
    (row,) = fleet.rows()
    assert row["placement"] != old["placement"]
    assert {shard["node"] for shard in row["shards"]} == {left, lost}
    assert fleet.ask().text.split() == ["w0", "w1", "w2"]
