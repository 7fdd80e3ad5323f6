"""Fleets that nobody has, as people use them: made up, run, given work, broken and healed."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from roost.errors import RoostError
from roost.run.chat import stream_chat
from running import Running, alive, environment, processes_of, roost, start, wait_for

CATALOG = """\
models:
- name: {model}
  replicas: {replicas}
  profiles:
  - {{name: gpu, engine: vllm, source: org/model, gpu_class: h100-80gb-hbm3, gpus_per_node: 2}}
"""
SMALL = """\
models:
- name: {model}
  replicas: {replicas}
  profiles:
  - {{name: cpu, engine: llama.cpp, source: small.gguf, min_memory_gb: 4}}
"""
WIDE = """\
models:
- name: {model}
  profiles:
  - name: wide
    engine: vllm
    source: org/wide
    gpu_class: h100-80gb-hbm3
    gpus_per_node: 8
    nodes: 2
    tensor_parallel: 8
    pipeline_parallel: 2
    args: [--loss-s, "0.2"]
"""


def fleet_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        roost("fleet", *words),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def generated(folder: Path, nodes: int, shape: str) -> Path:
    """The file that `roost fleet generate` makes."""
    made = fleet_command("generate", "--nodes", str(nodes), "--shape", shape)
    assert made.returncode == 0, made.stderr
    file = folder / "fleet.json"
    file.write_text(made.stdout)
    return file


class MadeUp:
    """A `roost up --fake-fleet` all of whose nodes are there.

    What is asked again and again is asked of the API, which `ctl` only prints.
    """

    def __init__(self, file: Path, *words: str) -> None:
        names = [node["name"] for node in json.loads(file.read_text())["nodes"]]
        self.stack: Running = start(file.parent / "state dir", "--fake-fleet", str(file), *words)
        credential = Path(self.stack.ready["admin_credential_file"]).read_text().strip()
        self._http = httpx2.Client(
            base_url=self.stack.ready["api"],
            headers={"Authorization": f"Bearer {credential}"},
            timeout=60,
        )
        wait_for(lambda: [n for n, row in self.nodes().items() if row["ready"]] == names)
        self.key = self.stack.key()

    def get(self, what: str) -> dict[str, Any]:
        answer = self._http.get(f"/api/v1/{what}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.get("nodes")["nodes"]}

    def rows(self, model: str) -> list[dict[str, Any]]:
        return [row for row in self.get("replicas")["replicas"] if row["model"] == model]

    def held(self, model: str) -> list[dict[str, Any]]:
        """What its replicas hold on nodes."""
        held = self.get("nodes")["allocations"]
        return [one for one in held if one["replica"].rpartition("-")[0] == model]

    def line(self, command: str, name: str) -> str:
        """Of `ctl COMMAND`, the line that begins with this name."""
        lines = self.stack.ctl(command).stdout.splitlines()
        return next(line for line in lines if line.split()[0] == name)

    def run(self, catalog: str, model: str, replicas: int = 1) -> list[dict[str, Any]]:
        """Apply it, and wait until all of it is ready; its rows."""
        text = catalog.format(model=model, replicas=replicas)
        self.stack.apply(text, "--wait", "--timeout", "60")
        rows = self.rows(model)
        assert [row["state"] for row in rows] == ["ready"] * replicas
        return rows

    def until(self, model: str, **wanted: object) -> dict[str, Any]:
        """The row of its only replica, once it is so."""
        return wait_for(
            lambda: next((row for row in self.rows(model) if wanted.items() <= row.items()), None)
        )

    def delete(self, model: str) -> None:
        self.stack.ctl("delete", model)
        wait_for(lambda: not self.rows(model))

    def why(self, replica: str, what: str) -> str:
        """Of the newest event of that kind."""
        return next(
            str(one["why"])
            for one in self.get("events?limit=200")["events"]
            if (one["object"], one["what"]) == (replica, what)
        )

    def ask(self, model: str) -> list[str]:
        def answer() -> list[str] | None:
            with suppress(RoostError):  # the gateway is about to hear of the replica
                url = self.stack.ready["gateway"]
                said = stream_chat(url, self.key, model=model, question="?", max_tokens=3)
                return said.text.split()
            return None

        return wait_for(answer)

    def order(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`roost fleet WORDS` to it."""
        return fleet_command(*words, "--dir", str(self.stack.directory))

    def obeyed(self, *words: str) -> str:
        ran = self.order(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def stop(self) -> None:
        self._http.close()
        assert self.stack.stop() == 0, self.stack.logs()
        assert processes_of(self.stack.directory) == []


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeUp]:
    """50 mixed nodes; each test has a model of its own, and leaves every node well."""
    made = MadeUp(generated(tmp_path_factory.mktemp("fleet"), 50, "mixed"))
    yield made
    made.stop()


def test_a_made_up_fleet_takes_a_catalog_answers_a_chat_and_lets_everything_go(
    fleet: MadeUp,
) -> None:
    rows = fleet.run(CATALOG, "big", replicas=3)
    nodes = fleet.nodes()
    assert {
        nodes[shard["node"]]["gpus"][index]["class"]
        for row in rows
        for shard in row["shards"]
        for index in shard["gpus"]
    } == {"h100-80gb-hbm3"}
    assert [len(one["gpus"]) for one in fleet.held("big")] == [2, 2, 2]
    assert fleet.ask("big") == ["w0", "w1", "w2"]
    fleet.delete("big")
    assert fleet.held("big") == []


def test_a_card_that_fails_is_shown_until_it_is_healed(fleet: MadeUp) -> None:
    name, index = next(
        (name, gpu["index"])
        for name, row in fleet.nodes().items()
        for gpu in row["gpus"] or ()
        if name.startswith("l40s") and gpu["healthy"]
    )

    def card() -> dict[str, Any]:
        found: dict[str, Any] = fleet.nodes()[name]["gpus"][index]
        return found

    said = f"{name} ecc --gpu {index}\n"
    assert fleet.obeyed("fault", name, "ecc", "--gpu", str(index)) == said
    assert said in fleet.obeyed("faults")
    wait_for(lambda: card()["healthy"] is False)
    assert card()["unhealthy_reason"] == "1 uncorrectable ECC error"
    assert "unhealthy:1" in fleet.line("nodes", name)
    assert fleet.obeyed("heal", name) == said
    wait_for(lambda: card()["healthy"] is True)
    assert said not in fleet.obeyed("faults")


def test_an_engine_that_crashes_again_and_again_is_shown_until_it_is_healed(fleet: MadeUp) -> None:
    (row,) = fleet.run(SMALL, "looping")
    node = row["shards"][0]["node"]
    said = f"{node} crash-loop --replica looping-0\n"
    assert fleet.obeyed("fault", node, "crash-loop", "--replica", "looping-0") == said
    failed = fleet.until("looping", state="failed")
    assert "told to crash at every start by roost fleet fault" in failed["cause"]
    assert "told to crash at every start" in fleet.line("replicas", "looping-0")
    assert fleet.obeyed("heal", node, "crash-loop") == said
    assert said not in fleet.obeyed("faults")
    well = fleet.until("looping", state="ready")
    assert well["placement"] == row["placement"]
    fleet.delete("looping")


def test_a_crash_of_one_rank_restarts_the_replica_on_both_of_its_nodes(fleet: MadeUp) -> None:
    (row,) = fleet.run(WIDE, "wide")
    first, second = (shard["node"] for shard in row["shards"])
    assert first != second
    assert fleet.ask("wide") == ["w0", "w1", "w2"]
    fleet.obeyed("fault", second, "crash", "--replica", "wide-0")
    again = fleet.until("wide", state="ready", restarts=1)
    assert again["placement"] == row["placement"]
    assert f"rank 1 on {second}: exit status 1" in fleet.why("wide-0", "replica.restarting")
    assert fleet.ask("wide") == ["w0", "w1", "w2"]
    fleet.delete("wide")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("fault", "h100-9999", "ecc"), 3, "this fleet has no node h100-9999: it has a100-0001, "),
        (("fault", "cpu-0001", "meteor"), 2, "Invalid value for 'KIND': 'meteor' is not one of"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_what_there_is(
    fleet: MadeUp, words: tuple[str, ...], status: int, says: str
) -> None:
    ran = fleet.order(*words)
    assert (ran.returncode, ran.stdout) == (status, "")
    assert says in ran.stderr


@pytest.mark.timeout(300)
def test_engines_that_are_processes_are_adopted_restarted_together_and_all_ended(
    tmp_path: Path,
) -> None:
    made = MadeUp(generated(tmp_path, 3, "h100"), "--engines", "processes")

    def pids(model: str) -> list[int]:
        return [shard["pid"] for row in made.rows(model) for shard in row["shards"]]

    try:
        made.run(CATALOG, "big", replicas=2)
        (wide,) = made.run(WIDE, "wide")
        before = {model: pids(model) for model in ("big", "wide")}
        engines = [*before["big"], *before["wide"]]
        assert len(set(engines)) == 4
        assert all(alive(pid) for pid in engines)

        # All nodes are killed with their one process; the next one finds what they left.
        nodes = made.stack.pid("agent")
        os.kill(nodes, signal.SIGKILL)
        wait_for(lambda: made.stack.pid("agent") != nodes)
        fault = ("fault", wide["shards"][1]["node"], "crash", "--replica", "wide-0")
        wait_for(lambda: made.order(*fault).returncode == 0)
        assert made.until("wide", state="ready", restarts=1)["placement"] == wide["placement"]
        again = pids("wide")
        assert set(again).isdisjoint(engines)
        assert not any(alive(pid) for pid in before["wide"])
        assert made.ask("wide") == ["w0", "w1", "w2"]
        assert pids("big") == before["big"]
        assert [row["restarts"] for row in made.rows("big")] == [0, 0]

        made.delete("wide")
        assert not any(alive(pid) for pid in again)
        assert all(alive(pid) for pid in before["big"])
    finally:
        made.stop()
