"""How long `roost plan` takes on a large fleet, as a whole process, and its memory: a line of JSON.

python tests/bench/plan_cli.py [--nodes 10000] [--replicas 20000] [--out FILE]
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GB = 10**9
CLASSES = ["h100-80gb-hbm3"] * 5 + ["a100-sxm4-80gb"] * 3 + ["rtx-4090"] * 2


def fleet(nodes: int, rng: random.Random) -> dict[str, object]:
    """8 GPUs a node, mixed in most ways, some of them held already."""
    made, held = [], []
    for at in range(nodes):
        name, gpu_class = f"node-{at:05}", rng.choice(CLASSES)
        made.append(
            {
                "name": name,
                "ready": rng.random() > 0.01,
                "cordoned": rng.random() < 0.01,
                "labels": {"pool": f"p{at % 8}", "rack": f"r{at // 40}"},
                "memory_bytes": rng.choice([256, 512, 1024]) * GB,
                "engines": ["vllm", "llama.cpp"],
                "gpus": [
                    {
                        "index": index,
                        "uuid": f"GPU-{at:05}-{index}",
                        "class": gpu_class,
                        "memory_bytes": (24 if gpu_class == "rtx-4090" else 80) * GB,
                        "nvlink_domain": 0 if at % 3 else index // 4,
                        "healthy": rng.random() > 0.002,
                        "unhealthy_reason": None,
                        "foreign_processes": int(rng.random() < 0.002),
                    }
                    for index in range(8)
                ],
                "fabrics": [{"name": f"ib{at % 8}", "hcas": ["mlx5_0", "mlx5_1"]}],
                "storage": [
                    {
                        "filesystem": "/dev/nvme0n1p2",
                        "mounts": ["/", "/models"],
                        "shared": False,
                        "free_bytes": rng.choice([200, 800]) * GB,
                        "total_bytes": 1000 * GB,
                    }
                ],
            }
        )
        if rng.random() < 0.1:
            held.append(
                {"replica": f"old-{at}", "node": name, "gpus": [0, 1], "memory_bytes": 64 * GB}
            )
    return {"nodes": made, "allocations": held}


def catalog(replicas: int, rng: random.Random) -> dict[str, object]:
    """A hundred models of one to three profiles; about four fifths of the cards are asked for."""
    models: list[dict[str, object]] = []
    for at in range(100):
        shape = rng.choice([(1, 1), (1, 1), (2, 1), (2, 1), (4, 1), (8, 1), (8, 2)])
        profiles: list[dict[str, object]] = []
        for which in range(rng.choice([1, 2, 3])):
            profile: dict[str, object] = {
                "name": f"p{which}",
                "priority": 10 - which,
                "engine": "vllm",
                "source": "hf:some/model",
                "gpu_class": rng.choice(CLASSES),
                "gpus_per_node": shape[0],
                "nodes": shape[1],
            }
            if rng.random() < 0.3:
                profile["node_selector"] = {"pool": f"p{rng.randrange(8)}"}
            if rng.random() < 0.5:
                profile["min_memory_gb"] = 24 * shape[0]
            if rng.random() < 0.3:
                profile["min_disk_gb"] = 100
            profiles.append(profile)
        models.append({"name": f"m{at:03}", "replicas": replicas // 100, "profiles": profiles})
    return {"models": models}


def main() -> None:
    """Write the files, run the command once, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=20_000)
    parser.add_argument("--out", type=Path, help="also write the result here")
    asked = parser.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        fleet_file, catalog_file = Path(folder) / "fleet.json", Path(folder) / "catalog.json"
        fleet_file.write_text(json.dumps(fleet(asked.nodes, rng)), encoding="utf-8")
        catalog_file.write_text(json.dumps(catalog(asked.replicas, rng)), encoding="utf-8")
        command = [sys.executable, "-m", "roost.cli.plan", "--brief", "-o", "json"]
        command += ["--fleet", str(fleet_file), "--catalog", str(catalog_file)]
        start = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        took = time.monotonic() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcomes: dict[str, int] = {}
    for decision in json.loads(done.stdout)["decisions"]:
        outcomes[decision["outcome"]] = outcomes.get(decision["outcome"], 0) + 1
    result = {
        "bench": "plan_cli",
        "nodes": asked.nodes,
        "replicas": asked.replicas,
        "exit": done.returncode,
        "wall_s": round(took, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_memory_mb": round(usage.ru_maxrss / 1000),
        "output_mb": round(len(done.stdout) / 1e6, 1),
        "outcomes": outcomes,
    }
    print(json.dumps(result))  # noqa: T201 - the result
    if asked.out is not None:
        asked.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
