"""What `ctl` prints for people, cell by cell, and for programs, as the API said it."""

import time
from typing import Any

import pytest

from fake_api import FakeApi, Run
from roost.cli import room

NODES: dict[str, Any] = {
    "nodes": [
        {
            "name": "gpu-a",
            "ready": True,
            "status": "ready",
            "cordoned": True,
            "cordon_reason": "fan failure",
            "labels": {"pool": "code", "ram": "32g"},
            "memory_bytes": 64_990_000_000,
            "engines": ["llama.cpp", "vllm"],
            "gpus": [
                {"index": 0, "uuid": "GPU-0", "class": "h100", "memory_bytes": 85_520_809_984},
                {"index": 1, "uuid": "GPU-1", "class": "h100", "healthy": True},
                {
                    "index": 2,
                    "class": "h100",
                    "healthy": False,
                    "unhealthy_reason": "3 uncorrectable ECC errors",
                },
                {"index": 3, "class": "l4", "foreign_processes": 1},
            ],
            "fabrics": [{"name": "ib0", "hcas": ["mlx5_0", "mlx5_1"]}],
            "storage": [
                {
                    "filesystem": "/dev/sda1",
                    "mounts": ["/", "/models"],
                    "shared": False,
                    "free_bytes": 50_000_000_000,
                    "total_bytes": 100_000_000_000,
                },
                {"filesystem": "/dev/sdb1", "free_bytes": 45_000_000_000, "total_bytes": None},
                {"filesystem": "filer:/m", "shared": True, "free_bytes": 10**15},
            ],
            "last_report_age_s": 3.2,
            "agent_version": "0.1.0",
            "address": "10.0.0.1",
            "problems": ["nvlink: nvidia-smi not found"],
        },
        {
            "name": "cpu-1",
            "status": "lost",
            "memory_bytes": 8_000_000_000,
            "gpus": [],
            "storage": [{"filesystem": "/dev/sda1", "free_bytes": None, "total_bytes": 5}],
            "last_report_age_s": 7300.0,
            "agent_version": "0.1.0",
        },
        {"name": "silent", "status": "not_ready", "draining": True, "gpus": None},
    ],
    "allocations": [
        {
            "replica": "coder-0",
            "model": "coder",
            "profile": "p",
            "node": "gpu-a",
            "gpus": [0],
            "memory_bytes": 24_000_000_000,
            "disk_bytes": 10_000_000_000,
            "state": "held",
        },
        {"replica": "x-1", "node": "cpu-1", "gpus": [], "memory_bytes": None, "state": "lost"},
    ],
}


def test_nodes_show_what_is_left_of_what_there_is(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/nodes"] = NODES
    ran = run("nodes")
    assert (ran.status, ran.err) == (0, "")
    h100, l4 = "h100:1/3(unhealthy:1)", "l4:0/1(foreign:1)"
    assert [line.split() for line in ran.out.splitlines()] == [
        ["NAME", "STATUS", "MEM", "DISK", "GPUS", "AGE", "VERSION"],
        ["gpu-a", "ready,cordoned", "40.9/64.9", "45/-", f"{h100},{l4}", "3s", "0.1.0"],
        ["cpu-1", "lost", "8/8", "-", "0", "2h", "0.1.0"],
        ["silent", "not_ready,draining", "-", "-", "-", "-", "-"],
    ]
    header, row = ran.out.splitlines()[:2]
    assert header.index("GPUS") == row.index("h100:")


def test_a_card_that_is_given_away_may_be_ill_and_stopping_as_well() -> None:
    cards = [{"index": 0, "class": "l4", "healthy": False}, {"index": 1, "class": "l4"}]
    stopping = {"node": "n", "gpus": [0, 1], "state": "stopping"}
    assert room.gpus({"gpus": cards}, [stopping]) == "l4:0/2(unhealthy:1;stopping:2)"


def test_json_is_what_the_api_said(api: FakeApi, run: Run) -> None:
    for words, route, answer in (
        (["nodes"], "GET /api/v1/nodes", NODES),
        (["node", "gpu-a"], "GET /api/v1/nodes/gpu-a", NODES["nodes"][0]),
        (["models"], "GET /api/v1/models", {"models": [{"model": "m", "é": None}]}),
        (["replicas"], "GET /api/v1/replicas", {"replicas": []}),
        (["explain", "m"], "GET /api/v1/explain/m", {"model": "m", "decisions": []}),
        (["keys", "list"], "GET /api/v1/keys", {"keys": []}),
        (["keys", "create", "k"], "POST /api/v1/keys", {"name": "k", "key": "roost-1"}),
        (["token", "list"], "GET /api/v1/tokens", {"tokens": []}),
        (["token", "create"], "POST /api/v1/tokens", {"token": "t", "id": "t-1"}),
        (["events"], "GET /api/v1/events", {"events": [], "next": None}),
        (["orphans"], "GET /api/v1/orphans", {"orphans": []}),
        (["delete", "m"], "DELETE /api/v1/models/m", {}),
        (["cordon", "n"], "POST /api/v1/nodes/n/cordon", {}),
        (["drain", "n"], "POST /api/v1/nodes/n/drain", {}),
        (["uncordon", "n"], "POST /api/v1/nodes/n/uncordon", {}),
        (["keys", "delete", "k"], "DELETE /api/v1/keys/k", {}),
        (["keys", "revoke", "k"], "DELETE /api/v1/keys/k", {}),
        (["token", "revoke", "t"], "DELETE /api/v1/tokens/t", {}),
    ):
        api.answers = {route: answer}
        ran = run(*words, "-o", "json")
        assert (ran.status, ran.json, ran.err) == (0, answer, ""), words


@pytest.mark.parametrize(
    ("words", "key", "says"),
    [
        (["nodes"], "nodes", "no nodes yet: roost ctl token create"),
        (["models"], "models", "no models yet: roost ctl apply -f"),
        (["replicas"], "replicas", "no replicas: roost ctl apply -f"),
        (["keys", "list"], "keys", "no keys yet: roost ctl keys create NAME"),
        (["token", "list"], "tokens", "no tokens: roost ctl token create"),
        (["events"], "events", "no events yet"),
        (["orphans"], "orphans", "no orphans"),
    ],
)
def test_nothing_is_said_to_be_nothing_and_what_to_do_next(
    api: FakeApi, run: Run, words: list[str], key: str, says: str
) -> None:
    api.answers[f"GET /api/v1/{key}"] = {key: [], "allocations": []}
    ran = run(*words)
    assert ran.status == 0
    assert ran.out.startswith(says)
    assert run(*words, "-o", "json").json[key] == []


def test_a_node_is_told_whole(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/nodes/gpu-a"] = NODES["nodes"][0]
    api.answers["GET /api/v1/nodes"] = NODES
    ran = run("node", "gpu-a")
    assert ran.out.splitlines() == [
        "name         gpu-a",
        "status       ready,cordoned",
        "reason       fan failure",
        "last report  3s ago",
        "agent        0.1.0",
        "address      10.0.0.1",
        "host name    -",
        "joined       -",
        "labels       pool=code ram=32g",
        "engines      llama.cpp, vllm",
        "memory       40.9/64.9 GB free",
        "fabrics      ib0: mlx5_0 mlx5_1",
        "problem      nvlink: nvidia-smi not found",
        "",
        "GPU  CLASS  MEM   NVLINK  USED_BY    WHY",
        "0    h100   85.5  -       coder-0    -",
        "1    h100   -     -       free       -",
        "2    h100   -     -       unhealthy  3 uncorrectable ECC errors",
        "3    l4     -     -       foreign    1 foreign process",
        "",
        "FILESYSTEM  KIND    FREE     TOTAL  MOUNTS",
        "/dev/sda1   local   50       100    / /models",
        "/dev/sdb1   local   45       -      -",
        "filer:/m    shared  1000000  -      -",
        "",
        "REPLICA  PROFILE  STATE  MEM  DISK  GPUS",
        "coder-0  p        held   24   10    0",
    ]


def test_a_node_that_reports_nothing_is_not_a_node_that_has_nothing(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/nodes/n"] = {"name": "n", "status": "lost", "allocations": []}
    out = run("node", "n").out
    for line in ("memory       not reported", "gpus         not reported", "address      -"):
        assert line in out.splitlines()


REPLICAS: dict[str, Any] = {
    "replicas": [
        {
            "replica": "coder-0",
            "model": "coder",
            "profile": "h100",
            "state": "ready",
            "since": None,
            "restarts": 0,
            "cause": None,
            "shards": [
                {"rank": 0, "node": "gpu-a", "pid": 7, "port": 20000, "gpus": [0]},
                {"rank": 1, "node": "gpu-b", "pid": 8, "port": 20000, "gpus": [0]},
            ],
            "running": 3.0,
            "waiting": 0,
            "kv_usage": 0.374,
        },
        {
            "replica": "coder-1",
            "model": "coder",
            "profile": None,
            "state": "pending",
            "restarts": 2,
            "cause": "no profile fits: nearest is gpu-c, cordoned",
            "shards": [],
            "running": None,
            "waiting": None,
            "kv_usage": None,
        },
    ]
}


def test_replicas_tell_zero_from_not_measured(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/replicas"] = REPLICAS
    assert run("replicas").out.splitlines() == [
        "REPLICA  MODEL  PROFILE  STATE    NODE         RESTARTS  RUNNING  WAITING  KV   SINCE  CAUSE",
        "coder-0  coder  h100     ready    gpu-a,gpu-b  0         3        0        37%  -      -",
        "coder-1  coder  -        pending  -            2         -        -        -    -      no profile fits: nearest is gpu-c, cordoned",
    ]


def test_a_replica_says_what_its_metrics_page_lacks(api: FakeApi, run: Run) -> None:
    """B035."""
    row: dict[str, Any] = {"replica": "a-0", "state": "ready", "running": 1.0, "kv_usage": None}
    row["unmeasured"] = ["vllm:kv or vllm:kv_old"]
    both = [*row["unmeasured"], "vllm:waiting"]
    rows = [row, row | {"unmeasured": both, "cause": "exit status 1"}, row | {"unmeasured": []}]
    api.answers["GET /api/v1/replicas"] = {"replicas": rows}
    assert [line.split(maxsplit=10)[8:] for line in run("replicas").out.splitlines()[1:]] == [
        ["-", "-", "its metrics page has no vllm:kv or vllm:kv_old"],
        [
            "-",
            "-",
            "its metrics page has no vllm:kv or vllm:kv_old, no vllm:waiting; exit status 1",
        ],
        ["-", "-", "-"],
    ]


def test_since_is_read_as_seconds_and_as_iso_time(api: FakeApi, run: Run) -> None:
    old = time.time() - 5 * 86400
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(old))
    rows = [{"replica": "a-0", "state": "ready", "since": s} for s in (old, iso, iso + "Z", "x")]
    api.answers["GET /api/v1/replicas"] = {"replicas": rows}
    lines = run("replicas").out.splitlines()[1:]
    assert [line.split()[9] for line in lines] == ["5d", "5d", "5d", "-"]


def test_a_failed_replica_says_when_it_is_tried_again_before_why_it_failed(
    api: FakeApi, run: Run
) -> None:
    in_a_while = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 250))
    row: dict[str, Any] = {"replica": "a-0", "state": "failed"}
    row["cause"] = "exit status 1: no such key"
    rows = [row | {"next_try_at": at} for at in (in_a_while, "2026-01-01T00:00:00Z", None)]
    api.answers["GET /api/v1/replicas"] = {"replicas": rows}
    api.answers["GET /api/v1/explain/a"] = {"model": "a", "replicas": rows, "decisions": []}
    said = [line.split(maxsplit=10)[10] for line in run("replicas").out.splitlines()[1:]]
    assert said == [
        "next try in 4m: exit status 1: no such key",
        "next try now: exit status 1: no such key",
        "exit status 1: no such key",
    ]
    assert run("explain", "a").out.splitlines()[0] == f"a-0 is failed: {said[0]}"


def test_models_show_ready_of_wanted(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/models"] = {
        "models": [
            {
                "model": "org/coder",
                "aliases": ["coder", "c"],
                "replicas": 2,
                "ready": 1,
                "priority": 5,
                "profiles": ["h100", "cpu"],
                "state": "pending: no profile fits",
            }
        ]
    }
    assert run("models").out.splitlines() == [
        "NAME       READY  PRIORITY  PROFILES  ALIASES  STATE",
        "org/coder  1/2    5         h100,cpu  coder,c  pending: no profile fits",
    ]


def test_every_column_but_the_last_is_one_word_for_awk(api: FakeApi, run: Run) -> None:
    rows = [{"replica": "a b", "model": "", "state": "ready", "cause": "two words"}]
    api.answers["GET /api/v1/replicas"] = {"replicas": rows}
    header, line = run("replicas").out.splitlines()
    assert len(header.split()) == 11
    assert line.split()[:4] == ["a_b", "-", "-", "ready"]
    assert len(line.split(None, 10)) == 11


HOSTILE = "x\x1b]0;gone\x07\x1b[31m\u202e\x9b2J\r\ny"


def test_control_characters_of_others_are_shown_and_not_obeyed(api: FakeApi, run: Run) -> None:
    node = {
        "name": HOSTILE,
        "status": HOSTILE,
        "labels": {HOSTILE: HOSTILE},
        "agent_version": HOSTILE,
        "problems": [HOSTILE],
        "gpus": [{"index": 0, "class": HOSTILE, "unhealthy_reason": HOSTILE}],
        "storage": [{"filesystem": HOSTILE, "mounts": [HOSTILE]}],
        "fabrics": [{"name": HOSTILE, "hcas": [HOSTILE]}],
    }
    row = {"replica": HOSTILE, "model": HOSTILE, "state": HOSTILE, "cause": HOSTILE}
    event = {"id": 1, "at": HOSTILE, "who": HOSTILE, "what": HOSTILE, "why": HOSTILE}
    api.answers = {
        "GET /api/v1/nodes": {"nodes": [node], "allocations": [{"node": HOSTILE, **row}]},
        "GET /api/v1/nodes/n": node,
        "GET /api/v1/replicas": {"replicas": [row]},
        "GET /api/v1/models": {"models": [{"model": HOSTILE, "state": HOSTILE}]},
        "GET /api/v1/events": {"events": [event]},
        "GET /api/v1/orphans": {"orphans": [row]},
        "GET /api/v1/keys": {"keys": [{"name": HOSTILE, "created_at": HOSTILE}]},
        "GET /api/v1/tokens": {"tokens": [{"id": HOSTILE}]},
        "GET /api/v1/explain/m": {"replicas": [row], "decisions": []},
        "GET /api/v1/replicas/r/logs": HOSTILE.encode(),
    }
    api.problem("DELETE /api/v1/models/m", 409, "conflict", HOSTILE, hint=HOSTILE)
    for words in (
        *(["nodes"], ["node", "n"], ["replicas"], ["models"], ["events"], ["orphans"]),
        *(["keys", "list"], ["token", "list"], ["explain", "m"], ["logs", "r"], ["delete", "m"]),
        ["node", HOSTILE],
    ):
        for more in ([], ["-o", "json"]):
            ran = run(*words, *more)
            for line in (ran.out + ran.err).split("\n"):
                assert line.isprintable(), (words, line)
            assert "gone" in ran.out + ran.err, words
