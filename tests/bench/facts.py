"""What reading all facts costs on a node of eight GPUs (the stand-in for NVML): time and memory.

    python tests/bench/facts.py [--readings N]

Prints JSON. The memory is of a fresh process that has read facts and does nothing else; goals are
under 200 ms and under 40 MB.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ONE = """
import json, os, resource, sys, time
started = time.perf_counter()
from pathlib import Path
from roost.agent.facts.read import Asked, read
from roost.agent.facts.gpus import Reader
from roost.agent.facts.remembered import Memory
from roost.testing.fake_nvml import stand_in
from roost.agent.facts import nvml
nvml.load()
loaded = time.perf_counter()
place = Path(sys.argv[1])
asked = Asked(env=os.environ)
library = stand_in({"ROOST_FAKE_NVML": str(place / "machine.json")})
cards = Reader(asked.gpus, library=library, memory=Memory(place / "gpus.json"))
times = []
for _ in range(int(sys.argv[2])):
    before = time.perf_counter()
    facts, _ = read(asked, cards)
    times.append(time.perf_counter() - before)
assert len(facts.gpus) == 8
status = Path("/proc/self/status").read_text()
rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps({"load_s": loaded - started, "times_s": times, "rss_bytes": rss * 1024}))
"""


def main() -> None:
    """Measure in a process of its own, and print."""
    from roost.testing.fake_nvml import eight_h100

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readings", type=int, default=50)
    readings = parser.parse_args().readings
    with tempfile.TemporaryDirectory() as place:
        eight_h100().save(Path(place) / "machine.json")
        # Compiled once before, as packages are when they are installed.
        env = {**os.environ, "PYTHONPYCACHEPREFIX": f"{place}/compiled"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        argv = [sys.executable, "-c", ONE, place, str(readings)]
        for _ in range(2):
            done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    found = json.loads(done.stdout)
    times = sorted(found["times_s"])
    result = {
        "benchmark": "facts",
        "gpus": 8,
        "readings": readings,
        "python": platform.python_version(),
        "load_ms": round(found["load_s"] * 1000, 1),
        "first_ms": round(found["times_s"][0] * 1000, 1),
        "median_ms": round(statistics.median(times) * 1000, 1),
        "worst_ms": round(times[-1] * 1000, 1),
        "rss_mb": round(found["rss_bytes"] / 1e6, 1),
        "goals": {"ms": 200, "rss_mb": 40},
    }
    print(json.dumps(result, indent=2))  # noqa: T201 - what a benchmark is for


if __name__ == "__main__":
    main()
