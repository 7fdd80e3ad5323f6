"""What each command asks of the API, and says when it is done."""

import json
import threading
from pathlib import Path

import pytest

from fake_api import CREDENTIAL, Asked, FakeApi, Run
from roost.cli.logs import _lines


def test_names_are_one_part_of_the_path_whatever_is_in_them(api: FakeApi, run: Run) -> None:
    api.answers["DELETE /api/v1/models/org%2Fcoder%3Fx"] = {}
    assert run("delete", "org/coder?x").status == 0
    assert api.asked[0].headers["authorization"] == f"Bearer {CREDENTIAL}"


def test_cordon_sends_the_reason(api: FakeApi, run: Run) -> None:
    api.answers["POST /api/v1/nodes/gpu-a/cordon"] = {}
    api.answers["POST /api/v1/nodes/gpu-a/uncordon"] = {}
    ran = run("cordon", "gpu-a", "--reason", "fan failure")
    assert json.loads(api.asked[0].body) == {"reason": "fan failure"}
    assert "roost ctl uncordon gpu-a" in ran.out
    assert run("uncordon", "gpu-a").out == "gpu-a takes new replicas again\n"


def test_drain_and_delete_are_done_to_a_node(api: FakeApi, run: Run) -> None:
    api.answers["POST /api/v1/nodes/gpu-a/drain"] = {}
    api.answers["DELETE /api/v1/nodes/gpu-a"] = b""
    assert run("drain", "gpu-a").status == 0
    assert json.loads(api.asked[0].body) == {"reason": None}
    assert run("nodes", "delete", "gpu-a").out.startswith("gpu-a is forgotten")
    assert run("nodes", "drain", "gpu-a", "-o", "json").json == {}
    assert [asked.method for asked in api.asked] == ["POST", "DELETE", "POST"]


def test_a_key_is_the_only_line_on_standard_output(api: FakeApi, run: Run) -> None:
    api.answers["POST /api/v1/keys"] = {"name": "laptop", "key": "roost-abc"}
    ran = run("keys", "create", "laptop")
    assert ran.out == "roost-abc\n"
    assert "roost ctl keys revoke laptop" in ran.err
    assert json.loads(api.asked[0].body) == {"name": "laptop"}


def test_keys_are_listed_without_their_text(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/keys"] = {"keys": [{"name": "a", "ending": "x9Zq"}]}
    assert run("keys", "list").out.splitlines()[1].split() == ["a", "x9Zq", "-"]


@pytest.mark.parametrize(
    ("written", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("1h", 3600), ("2d", 172800)]
)
def test_a_token_prints_the_line_for_the_new_machine(
    api: FakeApi, run: Run, written: str, seconds: int
) -> None:
    made = {"token": "roost-join-x", "expires_at": 1e9, "uses": 3, "id": "t-1"}
    api.answers["POST /api/v1/tokens"] = made
    ran = run("token", "create", "--ttl", written, "--uses", "3")
    assert ran.out == f"roost agent --server {api.url} --join roost-join-x\n"
    assert json.loads(api.asked[0].body) == {"ttl_s": seconds, "uses": 3}
    assert "good for 3 machines until 2001-09-0" in ran.err
    assert "answers on this machine only" in ran.err


@pytest.mark.parametrize("written", ["0", "-1h", "1 h", "1w", "", "1e3", "forever"])
def test_a_duration_that_is_none_is_refused(api: FakeApi, run: Run, written: str) -> None:
    ran = run("token", "create", "--ttl", written)
    assert ran.status == 2
    assert "is not a duration: as 30s, 15m, 1h or 2d" in ran.err
    assert api.asked == []


def test_events_are_shown_newest_last(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/events"] = {
        "events": [
            {"id": 2, "at": None, "who": "admin", "what": "b", "object": "m", "why": "because so"},
            {"id": 1, "at": None, "who": "server", "what": "a", "object": "m", "why": ""},
        ],
        "next": None,
    }
    ran = run("events", "-n", "2", "--before", "9")
    assert api.asked[0].query == {"limit": "2", "before": "9"}
    assert ran.out.splitlines() == [
        "ID  AT  WHO     WHAT  OBJECT  WHY",
        "1   -   server  a     m       -",
        "2   -   admin   b     m       because so",
    ]


def test_orphans_say_how_to_keep_them(api: FakeApi, run: Run) -> None:
    orphan = {"replica": "m-0", "model": "m", "profile": "cpu", "placement": "p-1"}
    shards = [{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n2"}]
    api.answers["GET /api/v1/orphans"] = {"orphans": [{**orphan, "shards": shards}]}
    lines = run("orphans").out.splitlines()
    assert lines[1].split() == ["m-0", "m", "cpu", "n1,n2", "p-1"]
    assert lines[2:] == [
        "to keep them: roost ctl apply -f a catalog with m",
        "to stop one: roost ctl orphans reap PLACEMENT",
    ]


def test_reaped_orphans_are_told_one_a_line(api: FakeApi, run: Run) -> None:
    api.answers["POST /api/v1/orphans/reap"] = {
        "reaped": [
            {"placement": "p-1", "replica": "m-0", "nodes": ["n1", "n2"], "outcome": "ordered"},
            {"placement": "p-2", "replica": "m-1", "nodes": ["n1"], "outcome": "stopping"},
            {"placement": "p-3", "replica": "k-0", "nodes": ["n3"], "outcome": "kept"},
        ]
    }
    ran = run("orphans", "reap", "--all", "--yes")
    assert json.loads(api.asked[0].body) == {"all": True}
    assert (ran.status, ran.out.splitlines()) == (
        0,
        [
            "p-1 (m-0 on n1, n2) finishes what it has and stops",
            "p-2 (m-1 on n1) was told to stop before",
            "p-3 (k-0 on n3) is kept: its model is in the catalog and takes it over",
            "1 orphan told to stop (watch: roost ctl replicas)",
        ],
    )


def test_the_orphans_named_are_sent_and_json_is_the_answer(api: FakeApi, run: Run) -> None:
    api.answers["POST /api/v1/orphans/reap"] = {"reaped": []}
    ran = run("orphans", "reap", "p-1", "p-2", "--yes", "-o", "json")
    assert json.loads(api.asked[0].body) == {"placements": ["p-1", "p-2"]}
    assert (ran.status, ran.json, ran.err) == (0, {"reaped": []}, "")
    assert run("orphans", "reap", "--all", "--yes").out == "no orphans: nothing was stopped\n"


def test_an_orphan_that_is_not_there_is_exit_status_3(api: FakeApi, run: Run) -> None:
    api.problem("POST /api/v1/orphans/reap", 404, "not_found", "there is no orphan p-1")
    ran = run("orphans", "reap", "p-1", "--yes")
    assert (ran.status, ran.out) == (3, "")
    assert "there is no orphan p-1" in ran.err


@pytest.mark.parametrize("words", [[], ["--all", "p-1", "--yes"], ["p-1"], ["--all"]])
def test_nothing_is_reaped_without_names_or_without_a_yes(
    api: FakeApi, run: Run, words: list[str]
) -> None:
    ran = run("orphans", "reap", *words)
    assert ran.status == 2
    assert "say --" in ran.err
    assert api.asked == []


def decisions(outcome: str) -> dict[str, object]:
    placed = outcome == "placed"
    shard = {"rank": 0, "node": "gpu-a", "gpus": [0], "gpu_uuids": [], "hcas": []}
    tried = {
        "profile": "p",
        "outcome": "fits" if placed else "rejected",
        "considered": 1,
        "fit": int(placed),
        "counts": {} if placed else {"memory_short": 1},
        "rejected": []
        if placed
        else [
            {
                "node": "gpu-a",
                "reasons": [
                    {
                        "code": "memory_short",
                        "has": 8 * 10**9,
                        "needs": 24 * 10**9,
                        "unit": "bytes",
                        "message": "has 8 GB of memory, needs 24",
                    }
                ],
            }
        ],
        "fabrics": [],
    }
    told: dict[str, object] = {
        "model": "coder",
        "replica": 0,
        "order": 1,
        "outcome": outcome,
        "profile": "p" if placed else None,
        "fabric": None,
        "shards": [shard] if placed else [],
        "why": "the only node" if placed else "no profile fits",
        "tried": [tried],
    }
    if not placed:
        told["would_fit_if"] = []
    return {"decisions": [told]}


def test_explain_begins_with_the_verdict(api: FakeApi, run: Run) -> None:
    row: dict[str, object] = {
        "replica": "coder-0",
        "state": "pending",
        "profile": None,
        "shards": [],
        "cause": "no profile fits",
    }
    api.answers["GET /api/v1/explain/coder"] = {
        "model": "coder",
        "replicas": [row],
        **decisions("unplaceable"),
    }
    ran = run("explain", "coder")
    assert ran.status == 0
    assert ran.out.splitlines()[0] == "coder-0 is pending: no profile fits"
    assert "has 8 GB of memory, needs 24" in ran.out


@pytest.mark.parametrize(("outcome", "status"), [("placed", 0), ("unplaceable", 4)])
def test_plan_asks_about_the_file_and_exits_4_when_something_fits_nowhere(
    api: FakeApi, run: Run, tmp_path: Path, outcome: str, status: int
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models: [] # é\n")
    api.answers["POST /api/v1/plan"] = decisions(outcome)
    ran = run("plan", "-f", str(file), "--brief")
    assert ran.status == status
    assert "coder-0" in ran.out
    assert api.asked[0].query == {"filename": str(file), "brief": "1"}
    assert api.asked[0].body == "models: [] # é\n".encode()
    as_json = run("plan", "-f", str(file), "-o", "json")
    assert (as_json.status, as_json.json) == (status, decisions(outcome))


def test_apply_says_what_changes_for_each_model(api: FakeApi, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models: []\n")
    changes = [{"model": "a", "change": "added"}, {"model": "b", "change": "unchanged"}]
    api.answers["POST /api/v1/catalog"] = {"changes": changes, "applied": True}
    assert run("apply", "-f", str(file)).out == "a added\nb unchanged\n"
    assert api.asked[0].query == {"filename": str(file), "dry_run": "false"}
    dry = run("apply", "-f", str(file), "--dry-run")
    assert dry.out.splitlines() == [
        "a would be added",
        "b would be unchanged",
        "nothing was applied: 1 model would change",
    ]
    assert api.asked[1].query["dry_run"] == "true"


def test_every_problem_of_a_file_is_a_line_and_nothing_was_applied(
    api: FakeApi, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("models: 3\n")
    lines = ["c.yaml:1:2: one", "c.yaml:3:4: two"]
    api.problem("POST /api/v1/catalog", 422, "unusable_input", "c.yaml: 2", problems=lines)
    ran = run("apply", "-f", str(file))
    assert ran.status == 2
    assert ran.err.splitlines() == [*lines, "error: c.yaml: 2"]
    told = run("apply", "-f", str(file), "--wait", "-o", "json")
    assert told.status == 2
    assert told.json == {
        "error": {"code": "unusable_input", "message": "c.yaml: 2", "problems": lines}
    }


@pytest.mark.parametrize("make", ["missing", "directory", "not text"])
def test_a_file_that_cannot_be_read_is_named(
    api: FakeApi, run: Run, tmp_path: Path, make: str
) -> None:
    file = tmp_path / "c.yaml"
    if make == "directory":
        file.mkdir()
    if make == "not text":
        file.write_bytes(b"models: \xff\xfe")
    ran = run("apply", "-f", str(file))
    assert ran.status == 2
    assert str(file) in ran.err
    assert api.asked == []


def test_logs_are_printed_as_they_come_without_escapes(api: FakeApi, run: Run) -> None:
    log = b"load\r10%\r\n\x1b[2Jdone\xff\t\xe2\x82\xac"
    api.answers["GET /api/v1/replicas/coder-0/logs"] = log
    ran = run("logs", "coder-0", "--tail", "5", "--previous", "--rank", "1")
    assert ran.out == "load\n10%\n\\x1b[2Jdone\\xff\t€\n"
    assert api.asked[0].query == {"tail": "5", "follow": "0", "runs_back": "1", "rank": "1"}
    run("logs", "coder-0", "--runs-back", "3")
    assert api.asked[1].query == {"tail": "200", "follow": "0", "runs_back": "3", "rank": "0"}


def test_a_line_ends_once_wherever_its_bytes_are_split() -> None:
    whole = "a\r\nb\rc€\n".encode()
    for at in range(len(whole)):
        assert "".join(_lines([whole[:at], whole[at:]])) == "a\nb\nc€\n"
        assert "".join(_lines(whole[i : i + 1] for i in range(at))).count("\r") == 0


def test_following_goes_on_after_a_lost_connection_and_marks_the_gap(
    api: FakeApi, run: Run
) -> None:
    calls = 0

    def answer(asked: Asked) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            return b"one\n"
        if calls == 2:
            return b"two\n"
        # The replica is gone: what ends a follower that no Ctrl-C ends.
        return 404, {"title": "", "status": 404, "code": "not_found", "detail": "no replica m-0"}

    api.answers["GET /api/v1/replicas/m-0/logs"] = answer
    ran = run("logs", "m-0", "-f", "--tail", "7")
    assert ran.status == 3
    assert ran.out == "one\ntwo\n"
    assert ran.err.splitlines()[-1] == "error: no replica m-0"
    assert "lines may be missing here" in ran.err
    assert [asked.query["tail"] for asked in api.asked] == ["7", "0", "0"]


def row(state: str, **more: object) -> dict[str, object]:
    return {
        "replica": "coder-0",
        "model": "coder",
        "state": state,
        "restarts": 0,
        "cause": None,
        "shards": [],
        **more,
    }


class World:
    """A server in which one replica goes through states, one a look."""

    def __init__(self, api: FakeApi, rows: list[dict[str, object]], change: str = "added") -> None:
        self.rows = rows
        self.looks = 0
        self.lock = threading.Lock()
        changes = [{"model": "coder", "change": change}]
        api.answers |= {
            "POST /api/v1/catalog": {"changes": changes, "applied": True},
            "GET /api/v1/models": {
                "models": [{"model": "coder", "replicas": 1}, {"model": "other", "replicas": 9}]
            },
            "GET /api/v1/replicas": self.look,
            "GET /api/v1/explain/coder": {"model": "coder", **decisions("unplaceable")},
        }

    def look(self, _asked: Asked) -> object:
        with self.lock:
            self.looks += 1
            now = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        other = {**row("failed"), "replica": "other-0", "model": "other"}
        return {"replicas": [now, other]}


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    file = tmp_path / "c.yaml"
    file.write_text("models: []\n")
    return str(file)


def test_waiting_ends_when_the_replicas_of_its_models_are_ready(
    api: FakeApi, run: Run, catalog: str
) -> None:
    on = {"shards": [{"rank": 0, "node": "n"}]}
    World(api, [row("pending"), row("loading", **on), row("ready", **on)])
    ran = run("apply", "-f", catalog, "--wait")
    assert ran.status == 0
    assert ran.out.splitlines()[0] == "coder added"
    assert ran.out.splitlines()[1].startswith("1 replica ready after ")
    assert ran.err.splitlines() == [
        "coder-0 is pending",
        "coder-0 is loading on n",
        "coder-0 is ready on n",
    ]


def test_a_changed_model_is_not_ready_by_its_old_replicas(
    api: FakeApi, run: Run, catalog: str
) -> None:
    world = World(
        api, [row("ready"), row("draining"), row("pending"), row("ready")], change="changed"
    )
    assert run("apply", "-f", catalog, "--wait").status == 0
    # Three looks at what goes on, and two at least at what stays.
    assert world.looks >= 5


def test_a_changed_model_is_not_ready_while_something_old_drains(
    api: FakeApi, run: Run, catalog: str
) -> None:
    World(api, [row("ready")], change="changed")
    both = [row("ready"), {**row("draining"), "placement": "old"}]
    api.answers["GET /api/v1/replicas"] = {"replicas": both}
    assert run("apply", "-f", catalog, "--wait", "--timeout", "2").status == 6


def test_a_replica_that_can_only_go_on_as_before_is_not_ready(
    api: FakeApi, run: Run, catalog: str
) -> None:
    World(api, [row("ready")], change="changed")
    api.answers["GET /api/v1/replicas"] = {"replicas": [row("ready", stale=True)]}
    ran = run("apply", "-f", catalog, "--wait", "--timeout", "0.2")
    assert ran.status == 4
    assert "coder-0 still serves by the old profile" in ran.err


def test_a_replica_that_is_replaced_beside_its_successor_counts_once(
    api: FakeApi, run: Run, catalog: str
) -> None:
    World(api, [row("ready")])
    both = [row("ready"), {**row("ready"), "placement": "new"}]
    api.answers["GET /api/v1/replicas"] = {"replicas": both}
    api.answers["GET /api/v1/models"] = {"models": [{"model": "coder", "replicas": 2}]}
    ran = run("apply", "-f", catalog, "--wait", "--timeout", "0")
    assert ran.status == 6
    assert "1 of 2 replicas ready" in ran.err


def test_waiting_in_json_is_one_document(api: FakeApi, run: Run, catalog: str) -> None:
    World(api, [row("pending"), row("ready")])
    ran = run("apply", "-f", catalog, "--wait", "-o", "json")
    assert ran.status == 0
    assert ran.json["applied"] is True
    assert ran.json["ready"] is True
    assert [r["replica"] for r in ran.json["replicas"]] == ["coder-0"]


@pytest.mark.parametrize(
    ("last", "status", "says"),
    [
        (row("loading"), 6, ["coder-0 is still loading", "error: the time is up: 0 of 1 replica"]),
        (row("pending"), 4, ["has 8 GB of memory, needs 24", "error: a replica fits nowhere: 0"]),
        (
            row("failed", cause="no such file: x.gguf"),
            1,
            ["coder-0 failed: no such file: x.gguf", "roost ctl logs coder-0"],
        ),
    ],
)
def test_waiting_that_ends_without_ready_says_why(
    api: FakeApi, run: Run, catalog: str, last: dict[str, object], status: int, says: list[str]
) -> None:
    World(api, [last])
    ran = run("apply", "-f", catalog, "--wait", "--timeout", "0.3")
    assert ran.status == status
    for words in says:
        assert words in ran.err
    assert "the catalog stays applied" in ran.err
    as_json = run("apply", "-f", catalog, "--wait", "--timeout", "0", "-o", "json")
    assert as_json.status == status
    assert as_json.json["ready"] is False
    for words in says:
        assert words in as_json.err


def test_a_replica_that_keeps_failing_is_not_waited_for(
    api: FakeApi, run: Run, catalog: str
) -> None:
    failing = [row("failed", restarts=n, cause="bad flag") for n in (5, 6, 7, 8)]
    world = World(api, failing)
    ran = run("apply", "-f", catalog, "--wait", "--timeout", "100")
    assert ran.status == 1
    assert world.looks == 4
    assert "error: a replica keeps failing" in ran.err
