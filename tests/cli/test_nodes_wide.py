"""`ctl nodes -o wide`: what is shared, and a file server on many nodes counted once."""

import json
from typing import Any

from fake_api import FakeApi, Run


def node(name: str, *storage: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "status": "ready", "storage": list(storage) or None}


def disk(**more: Any) -> dict[str, Any]:
    return {"filesystem": "/dev/sda1", "free_bytes": 10**11, "total_bytes": 468 * 10**9, **more}


def filer(**more: Any) -> dict[str, Any]:
    return {
        "filesystem": "nas:/models",
        "shared": True,
        "mounts": ["/mnt/a", "/mnt/b"],
        "free_bytes": 4 * 10**12,
        "total_bytes": 10**13,
        **more,
    }


def test_twenty_nodes_with_one_filer_are_twenty_rows_and_one_filer(api: FakeApi, run: Run) -> None:
    nodes = [node(f"n{i:02}", disk(), filer()) for i in range(20)]
    api.answers["GET /api/v1/nodes"] = {"nodes": [*nodes, node("old")], "allocations": []}
    ran = run("nodes", "-o", "wide")
    lines = ran.out.splitlines()
    assert lines[0].split() == [
        *("NAME", "STATUS", "MEM", "DISK", "GPUS", "AGE", "VERSION", "SHARED", "ADDRESS")
    ]
    assert len(lines) == 22
    assert all(line.split()[3] == "100/468" for line in lines[1:21])
    assert all(line.split()[7] == "4000/10000" for line in lines[1:21])
    assert lines[21].split() == ["old", "ready", *"-------"]
    assert ran.err == "in all, free/total GB: local 2000/9360, shared 4000/10000\n"


def test_without_wide_nothing_is_said_of_what_is_shared(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/nodes"] = {"nodes": [node("a", filer())], "allocations": []}
    ran = run("nodes")
    assert ran.err == ""
    assert "SHARED" not in ran.out
    assert ran.out.splitlines()[1].split()[3] == "-"


def test_a_node_tells_what_is_read_only_and_what_does_not_answer(api: FakeApi, run: Run) -> None:
    told = node("a", disk(read_only=True, free_bytes=0), filer(stale_since=1_800_000_000))
    api.answers["GET /api/v1/nodes/a"] = told
    api.answers["GET /api/v1/nodes"] = {"nodes": [told], "allocations": []}
    kinds = [line.split()[1] for line in run("node", "a").out.splitlines() if "/" in line]
    assert kinds == ["local,read-only", "shared,not-answering"]


def test_the_reason_of_an_uncordon_is_told(api: FakeApi, run: Run) -> None:
    api.answers["POST /api/v1/nodes/a/uncordon"] = node("a")
    assert run("uncordon", "a", "--reason", "new fan").status == 0
    assert json.loads(api.asked[-1].body) == {"reason": "new fan"}
