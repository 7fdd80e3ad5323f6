"""A real agent with the stand-in for NVML: what it reports of its cards, over faults and restarts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.conftest import Story
from agent.node import Node, fake_llama_server, shard
from agent.wire_server import WireServer
from roost.domain.gpu import Gpu
from roost.domain.replica import ReplicaState
from roost.testing.fake_nvml import FakeMachine, FakeProcess, eight_h100

Tell = Callable[[Story], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the agents of this test take for their driver."""
    path = tmp_path / "machine.json"
    eight_h100().save(path)
    monkeypatch.setenv("ROOST_FAKE_NVML", str(path))
    return path


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    return ("--join", "token-1", "--llama-server", str(fake_llama_server(tmp_path)))


async def first_report(server: WireServer, node: Node, *words: str) -> dict[str | None, Gpu]:
    """What a new agent says of its cards."""
    if node.process is not None:
        await node.end()
    await node.start(*words)
    said = (await server.next_report()).facts.gpus
    assert said is not None
    return {gpu.uuid: gpu for gpu in said}


def test_health_is_by_evidence_over_agent_restarts_and_missing_cards_come_back(
    tell: Tell, machine: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        whole = await first_report(server, node)
        assert [gpu.healthy for gpu in whole.values()] == [True] * 8
        assert {gpu.nvlink_domain for gpu in whole.values()} == {0}
        ill = eight_h100().cards[3].uuid
        eight_h100().but(3, ecc=2).save(machine)
        for _ in range(2):
            found = await first_report(server, node)
            assert found[ill].unhealthy_reason == "2 uncorrectable ECC errors"
            assert sum(gpu.healthy is True for gpu in found.values()) == 7
        FakeMachine(cards=eight_h100().cards[:3]).save(machine)
        found = await first_report(server, node)
        assert len(found) == 8
        assert [gpu.unhealthy_reason for gpu in found.values()].count("missing") == 5
        eight_h100().save(machine)
        assert await first_report(server, node) == whole
        FakeMachine(init=18).save(machine)
        await node.end()
        await node.start()
        report = await server.next_report()
        assert report.facts.gpus is None
        assert "NVML does not work: Driver/library version mismatch" in report.problems[0]

    tell(story)


def test_own_engines_and_their_children_are_never_foreign_also_after_a_restart(
    tell: Tell, machine: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        file = tmp_path / "children"
        args = ("--children", "1", "--stray-children", "1", "--children-file", str(file))
        await server.want(shard("p1", source="/models/none.gguf", args=args))
        await node.start(*words)
        engine = (await server.state("p1", ReplicaState.READY)).pid
        assert engine is not None
        own = [engine, *(int(pid) for pid in file.read_text().split())]
        assert len(own) == 3
        card = {"processes": tuple(FakeProcess(pid=pid) for pid in own)}
        stranger = {"processes": (FakeProcess(pid=os.getpid()), FakeProcess(pid=engine))}
        eight_h100().but(0, **card).but(1, **stranger).save(machine)
        found = await first_report(server, node, *words)
        foreign = [gpu.foreign_processes for gpu in found.values()]
        assert foreign == [0, 1, 0, 0, 0, 0, 0, 0]

    tell(story)


def test_a_replica_whose_card_is_gone_fails_for_that_and_returns_with_it(
    tell: Tell, machine: Path, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        whole = await first_report(server, node, *words)
        card = eight_h100().cards[6].uuid
        assert card in whole
        FakeMachine(cards=eight_h100().cards[:6]).save(machine)
        await node.end()
        spec = replace(shard("p1", source="/models/none.gguf", args=()), gpu_uuids=(card,))
        other = replace(
            shard("p2", source="/models/none.gguf", args=()),
            gpu_uuids=(eight_h100().cards[0].uuid,),
        )
        await server.want(spec, other)
        await node.start(*words)
        await server.state("p2", ReplicaState.READY)
        failed = await server.state("p1", ReplicaState.FAILED)
        assert failed.cause == f"gpu 6 ({card}) is missing"
        eight_h100().save(machine)
        await server.state("p1", ReplicaState.READY, within=100)

    tell(story)


def test_a_machine_that_boots_with_fewer_cards_starts_no_engine_on_those_it_misses(
    tell: Tell, machine: Path, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        missed, kept = (eight_h100().cards[number].uuid for number in (6, 0))
        specs = [
            replace(shard(placement, source="/models/none.gguf", args=()), gpu_uuids=(card,))
            for placement, card in (("p1", missed), ("p2", kept))
        ]
        await server.want(*specs)
        await node.start(*words)
        pids = [(await server.state(name, ReplicaState.READY)).pid for name in ("p1", "p2")]
        await node.end()
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        FakeMachine(cards=eight_h100().cards[:6]).save(machine)
        await node.start(*words)
        await server.told(lambda s: s.state is ReplicaState.READY and s.pid not in pids, "p2")
        failed = await server.state("p1", ReplicaState.FAILED)
        assert failed.cause == f"gpu 6 ({missed}) is missing"

    tell(story)


def facts(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "roost.cli.main", "agent", "facts", *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_facts_are_printed_with_cards_adapters_and_problems(machine: Path, tmp_path: Path) -> None:
    port = tmp_path / "root/sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    root = str(tmp_path / "root")
    shown = facts("--root", root, "--fabric", "ib0=mlx5_*")
    assert shown.returncode == 0, shown.stderr
    assert "h100-80gb-hbm3, 85.5 GB, nvlink 0, healthy, foreign 0, at 0000:10:00.0" in shown.stdout
    assert "ib0: mlx5_0" in shown.stdout
    assert "port 1 ACTIVE InfiniBand 400 Gb/s" in shown.stdout
    as_json = facts("--root", root, "--fabric", "ib0=mlx5_*", "-o", "json")
    said = json.loads(as_json.stdout)
    assert [gpu["class"] for gpu in said["gpus"]] == ["h100-80gb-hbm3"] * 8
    assert said["gpu_details"][0]["pci_address"] == "0000:10:00.0"
    assert said["hcas"][0]["ports"][0]["rate_gbps"] == 400
    assert said["fabrics"] == [{"name": "ib0", "hcas": ["mlx5_0"]}]


def test_a_file_that_cannot_be_used_is_a_problem_and_a_wrong_fabric_a_usage_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "smi.xml").write_text("<html/>")
    shown = facts("--nvidia-smi-xml", str(tmp_path / "smi.xml"), "--root", str(tmp_path))
    assert shown.returncode == 0
    assert "nvidia-smi's XML is not read: it is a document of 'html'" in shown.stdout
    shown = facts("--fabric", "ib0")
    assert shown.returncode == 2
    assert "--fabric ib0 is not NAME=HCA[,HCA]" in shown.stderr
