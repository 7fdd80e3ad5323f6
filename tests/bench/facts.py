"""What reading a node's facts costs, what a report of them weighs, and what its repetition writes.

    python tests/bench/facts.py [--readings N]

Prints JSON: this machine without GPUs, and with eight (the stand-in for NVML), each with two model
directories in a process of its own that has read facts and does nothing else; then the report of
the second, and the bytes that a server's database grew by over a hundred more of it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from api.live import Live, WireNode
from roost.testing.fake_nvml import eight_h100

READ = """
import json, os, sys, time
started = time.perf_counter()
from pathlib import Path
from roost.agent.facts import nvml
from roost.agent.facts.gpus import Reader
from roost.agent.facts.read import Asked, read
from roost.agent.facts.remembered import Memory
from roost.agent.programs import Programs
place, gpus = Path(sys.argv[1]), int(sys.argv[3])
asked = Asked(programs=Programs(env=os.environ), model_directories=(place / "models", Path("/dev/shm")))
library = None
if gpus:
    from roost.testing.fake_nvml import stand_in
    nvml.load()
    library = stand_in({"ROOST_FAKE_NVML": str(place / "machine.json")})
cards = Reader(asked.gpus, library=library, memory=Memory(place / "gpus.json"))
loaded = time.perf_counter()
times = []
for _ in range(int(sys.argv[2])):
    before = time.perf_counter()
    facts, problems = read(asked, cards)
    times.append(time.perf_counter() - before)
assert len(facts.gpus or ()) == gpus
assert len(facts.storage) == 2, facts.storage
status = Path("/proc/self/status").read_text()
rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
from roost.formats import agent_wire as wire
report = wire.Report(
    identity="i" * 32, sequence=1, started_at=time.time(), facts=facts, problems=problems
)
(place / "report.json").write_bytes(wire.encode(report))
print(json.dumps({"load_s": loaded - started, "times_s": times, "rss_bytes": rss * 1024}))
"""


def read(place: Path, readings: int, gpus: int) -> dict[str, Any]:
    """Read in a process of its own."""
    # Compiled once before, as packages are when they are installed.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": f"{place}/compiled"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    argv = [sys.executable, "-c", READ, str(place), str(readings), str(gpus)]
    for _ in range(2):
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    found = json.loads(done.stdout)
    times = sorted(found["times_s"])
    return {
        "gpus": gpus,
        "load_ms": round(found["load_s"] * 1000, 1),
        "first_ms": round(found["times_s"][0] * 1000, 1),
        "median_ms": round(statistics.median(times) * 1000, 1),
        "worst_ms": round(times[-1] * 1000, 1),
        "rss_mb": round(found["rss_bytes"] / 1e6, 1),
        "goals": {"ms": 200, "rss_mb": 40} if gpus else {"ms": 50, "rss_mb": 30},
    }


def reported(place: Path) -> dict[str, Any]:
    """The size of a report, and what a hundred that change nothing add to a server's database."""
    body = json.loads((place / "report.json").read_bytes())
    with Live(place / "server") as server:
        node = WireNode(server, name="bench", facts=body["facts"], identity=body["identity"]).join()

        def report() -> int:
            answered = node.report(problems=body["problems"])
            assert answered.status_code == 200, answered.text
            return sum(file.stat().st_size for file in (place / "server" / "server").glob("*.db*"))

        report()
        # What is new in the first one is stored after it is answered.
        time.sleep(1)
        sizes = [report() for _ in range(101)]
    return {
        "bytes": (place / "report.json").stat().st_size,
        "first_and_last_database_bytes": [sizes[0], sizes[-1]],
        "written_by_100_more": sizes[-1] - sizes[0],
        "goals": {"bytes": 16_000, "written_by_100_more": 0},
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readings", type=int, default=50)
    readings = parser.parse_args().readings
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        (place / "models").mkdir()
        eight_h100().save(place / "machine.json")
        result = {
            "benchmark": "facts",
            "readings": readings,
            "python": platform.python_version(),
            "nodes": [read(place, readings, gpus) for gpus in (0, 8)],
            "report": reported(place),
        }
    print(json.dumps(result, indent=2))  # noqa: T201 - what a benchmark is for


if __name__ == "__main__":
    main()
