"""How much facts cost: time to read them, memory of the process that does, bytes of a report.

    python tests/bench/facts.py [--times N] [--model-dir DIR ...]

Prints JSON. `cpu_ms` is CPU time of this process, so that a busy machine falsifies less.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BUDGET = {"read_ms": 50, "peak_mb": 30, "report_bytes": 16_000}

# A process that does nothing but read facts once: what `roost agent facts` is.
ONCE = """
import json, resource, sys, time
from pathlib import Path
from roost.agent.facts import Asked, read
began = time.process_time_ns()
read(Asked(model_directories=tuple(Path(one) for one in sys.argv[1:])))
print(json.dumps({
    "cpu_ms": (time.process_time_ns() - began) / 1e6,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--model-dir", action="append", default=[])
    given = parser.parse_args()
    directories = [Path(one) for one in given.model_dir or [Path.cwd()]]
    json.dump(measured(directories, given.times), sys.stdout, indent=2)
    print()  # noqa: T201 - a program


def measured(directories: list[Path], times: int) -> dict[str, Any]:
    from roost.agent.facts import Asked, gpus, host, read
    from roost.domain.allocation import ReplicaName
    from roost.domain.replica import ObservedShard, PlacementId, ReplicaState
    from roost.formats import agent_wire as wire

    asked = Asked(model_directories=tuple(directories), env=os.environ)
    cards, machine = gpus.Reader(asked.gpus), host.Reader(asked.root, asked.model_directories)
    cpu, wall = [], []
    for _ in range(times):
        began, at = time.process_time_ns(), time.perf_counter_ns()
        facts, problems = read(asked, cards, machine=machine)
        cpu.append((time.process_time_ns() - began) / 1e6)
        wall.append((time.perf_counter_ns() - at) / 1e6)
    machine.close()
    shards = tuple(
        ObservedShard(
            placement=PlacementId(f"placement-{n}"),
            rank=0,
            replica=ReplicaName(f"qwen2.5-coder-14b-{n}"),
            state=ReplicaState.READY,
            since=time.time(),
            port=21000 + n,
            pid=10_000 + n,
        )
        for n in range(8)
    )
    report = wire.Report(
        identity="0" * 32, sequence=1, started_at=0, facts=facts, shards=shards, problems=problems
    )
    return {
        "budget": BUDGET,
        "once": once(directories),
        "again": {
            "cpu_ms": round(statistics.median(cpu), 3),
            "wall_ms": {"median": round(statistics.median(wall), 3), "max": round(max(wall), 3)},
        },
        "report_bytes": {"this_machine_8_engines": len(wire.encode(report))},
        "gpus": None if facts.gpus is None else len(facts.gpus),
        "processes_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    }


def once(directories: list[Path]) -> dict[str, float]:
    """Of a fresh process, the best of five."""
    found = []
    for _ in range(5):
        said = subprocess.run(
            [sys.executable, "-c", ONCE, *map(str, directories)],
            check=True,
            stdout=subprocess.PIPE,
            timeout=60,
        ).stdout
        found.append(json.loads(said))
    best: dict[str, float] = min(found, key=lambda one: one["cpu_ms"])
    return {key: round(value, 2) for key, value in best.items()}


if __name__ == "__main__":
    main()
