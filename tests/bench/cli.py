"""How long `roost ctl nodes` takes as a whole process, and what its imports would cost otherwise.

    python tests/bench/cli.py [--runs N]

Prints JSON: wall-clock milliseconds from start to exit, the least and the median of N runs, against an
API on loopback. Bytecode is in a directory of the benchmark's own and warm, as after a first run of an
installed package; `cold` is without any, the standard library's included.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_api import CREDENTIAL, serving

NODE: dict[str, Any] = {
    "status": "ready",
    "memory_bytes": 540 * 10**9,
    "gpus": [{"index": at, "class": "h100-80gb-hbm3"} for at in range(8)],
    "storage": [{"filesystem": "/dev/nvme0n1p2", "free_bytes": 10**12, "total_bytes": 2 * 10**12}],
    "last_report_age_s": 2.0,
    "agent_version": "0.1.0",
}
ROOST = str(Path(sys.executable).with_name("roost"))
IMPORTS = ("pass", "import click", "import http.client", "import httpx2", "import rich.table")


def took(words: Sequence[str], env: Mapping[str, str], runs: int) -> dict[str, float]:
    """Milliseconds of a process that must end well."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - start) * 1000)
    return {"least_ms": round(min(times), 1), "median_ms": round(statistics.median(times), 1)}


def measure(runs: int) -> dict[str, Any]:
    """Every figure."""
    result: dict[str, Any] = {
        "benchmark": "cli",
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "runs": runs,
        "ctl_nodes": {},
        "imports": {},
    }
    with tempfile.TemporaryDirectory() as folder, serving() as api:
        state = Path(folder) / "server"
        state.mkdir()
        (state / "endpoint.json").write_text(json.dumps({"api": api.url}))
        (state / "admin_credential").write_text(CREDENTIAL)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ROOST_", "PYTHON"))}
        env |= {"ROOST_DIR": folder, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        for nodes in (1, 1000):
            api.answers["GET /api/v1/nodes"] = {
                "nodes": [{"name": f"node-{at}", **NODE} for at in range(nodes)],
                "allocations": [],
            }
            took([ROOST, "ctl", "nodes"], env, 1)
            result["ctl_nodes"][f"{nodes}_nodes"] = took([ROOST, "ctl", "nodes"], env, runs)
        cold = {**env, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": f"{folder}/none"}
        result["ctl_nodes"]["1000_nodes_cold"] = took(
            [ROOST, "ctl", "nodes"], cold, max(3, runs // 4)
        )
        result["help"] = took([ROOST, "--help"], env, runs)
        for line in IMPORTS:
            words = [sys.executable, "-c", line]
            took(words, env, 1)
            result["imports"][line] = took(words, env, runs)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    sys.stdout.write(json.dumps(measure(parser.parse_args().runs), indent=2) + "\n")
