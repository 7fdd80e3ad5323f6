"""What reading a node's facts costs, what a report of them weighs, and what its repetition writes.

    python tests/bench/facts.py [--readings N]

Prints JSON: this machine without GPUs, and with eight (the stand-in for NVML), each with two model
directories in a process of its own that has read facts and does nothing else; then the report of
the second with file servers added, and what a hundred more of it wrote to a server's database.
Each number stands beside its goal. Ends with status 1 if one is missed.
"""

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from api.live import Live, WireNode
from roost.testing.fake_nvml import eight_h100

FILE_SERVERS: Final = 6
"""Besides the filesystems that this machine has: more than most nodes mount."""

READ: Final = """
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
    ms, mb = (200, 40) if gpus else (50, 30)
    return {
        "gpus": gpus,
        "load_ms": round(found["load_s"] * 1000, 1),
        "first_ms": under(found["times_s"][0] * 1000, ms),
        "median_ms": under(statistics.median(times) * 1000, ms),
        "worst_ms": under(times[-1] * 1000, ms),
        "rss_mb": under(found["rss_bytes"] / 1e6, mb),
    }


def under(measured: float, goal: float) -> dict[str, Any]:
    """A number, and whether it is below its goal."""
    return {"measured": round(measured, 1), "goal": f"< {goal}", "met": measured < goal}


def nothing(measured: int) -> dict[str, Any]:
    """A number that is to be 0."""
    return {"measured": measured, "goal": "0", "met": measured == 0}


def file_server(number: int) -> dict[str, Any]:
    """As a node reports one that it mounts."""
    return {
        "filesystem": f"filer-{number}.storage.example.com:/export/models-{number}",
        "mounts": [f"/mnt/models-{number}"],
        "shared": True,
        "free_bytes": 40_123_456_789_012,
        "total_bytes": 100_123_456_789_012,
        "read_only": False,
    }


class Database:
    """A server's database, looked at from outside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)

    def version(self) -> int:
        """Differs once somebody else has committed a change (sqlite.org/pragma.html, data_version)."""
        return int(self._reader.execute("PRAGMA data_version").fetchone()[0])

    def rows(self) -> int:
        """Of all tables."""
        tables = self._reader.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return sum(
            self._reader.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608 - its own tables
            for (name,) in tables.fetchall()
        )

    def bytes(self) -> int:
        """With what waits in the log."""
        beside = self._path.parent.glob(f"{self._path.name}*")
        return sum(file.stat().st_size for file in beside)

    def close(self) -> None:
        """No more questions."""
        self._reader.close()


def reported(place: Path) -> dict[str, Any]:
    """The size of a report, and what a hundred that change nothing write to a server's database."""
    body = json.loads((place / "report.json").read_bytes())
    body["facts"]["storage"] += [file_server(number) for number in range(FILE_SERVERS)]
    with Live(place / "server") as server:
        node = WireNode(server, name="bench", facts=body["facts"], identity=body["identity"]).join()

        def report() -> None:
            answered = node.report(problems=body["problems"])
            assert answered.status_code == 200, answered.text

        (path,) = (place / "server" / "server").glob("*.db")
        with closing(Database(path)) as database:
            before = database.version()
            report()
            # What is new in the first one is stored after it is answered.
            time.sleep(1)
            assert database.version() != before, "not even the first report is seen to be stored"
            rows, size, commits = database.rows(), database.bytes(), 0
            for _ in range(100):
                before = database.version()
                report()
                commits += database.version() != before
            before = database.version()
            time.sleep(1)
            commits += database.version() != before
            rows, size = database.rows() - rows, database.bytes() - size
    return {
        "gpus": len(body["facts"]["gpus"]),
        "filesystems": len(body["facts"]["storage"]),
        "bytes": under(len(json.dumps(body, separators=(",", ":")).encode()), 16_000),
        "written_by_100_more": {
            "commits": nothing(commits),
            "rows": nothing(rows),
            "bytes": nothing(size),
        },
    }


def missed(result: object) -> bool:
    """Whether a goal in it is."""
    if isinstance(result, dict):
        return result.get("met") is False or any(missed(one) for one in result.values())
    return isinstance(result, list) and any(missed(one) for one in result)


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
    if missed(result):
        sys.exit(1)


if __name__ == "__main__":
    main()
