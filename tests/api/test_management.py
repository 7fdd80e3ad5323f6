import json
from collections.abc import Iterator

import httpx2
import pytest

from api.live import CATALOG, Live, WireNode, states, wait_for


@pytest.fixture
def admin(own_server: Live) -> Iterator[httpx2.Client]:
    with own_server.admin() as client:
        yield client


def test_a_catalog_is_applied_once_and_adds_to_what_is_there(admin: httpx2.Client) -> None:
    def apply(text: str, **query: object) -> list[str]:
        answer = admin.post("/api/v1/catalog", content=text, params=query).json()  # type: ignore[arg-type]
        assert answer["applied"] == ("dry_run" not in query)
        return [f"{c['model']} {c['change']}" for c in answer["changes"]]

    other = CATALOG.replace("coder", "other")
    assert apply(CATALOG, dry_run=True) == ["coder added"]
    assert apply(CATALOG) == ["coder added"]
    assert apply(CATALOG) == ["coder unchanged"]
    assert apply(CATALOG.replace("4}", "5}")) == ["coder changed"]
    assert apply(other) == ["other added"]
    models = admin.get("/api/v1/models").json()["models"]
    assert [(m["model"], m["state"]) for m in models] == [
        ("coder", "pending"),
        ("other", "pending"),
    ]


def test_an_unusable_catalog_is_refused_with_every_problem_and_nothing_is_applied(
    admin: httpx2.Client,
) -> None:
    bad = CATALOG + "- name: coder\n  replcas: 2\n  profiles: []\n"
    answer = admin.post("/api/v1/catalog", content=bad, params={"filename": "c.yaml"})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "unusable_input"
    assert len(problem["problems"]) >= 2
    assert all(line.startswith("c.yaml:") for line in problem["problems"])
    assert admin.get("/api/v1/models").json() == {"models": []}


def test_a_name_that_an_applied_model_has_cannot_be_anothers_alias(admin: httpx2.Client) -> None:
    admin.post("/api/v1/catalog", content=CATALOG)
    clash = CATALOG.replace("name: coder", "name: x\n  aliases: [coder]")
    answer = admin.post("/api/v1/catalog", content=clash)
    assert answer.status_code == 422
    assert "the name coder is already coder's" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/api/v1/nodes/nope", 404, "not_found"),
        ("DELETE", "/api/v1/models/no/pe", 404, "not_found"),
        ("GET", "/api/v1/explain/no/pe", 404, "not_found"),
        ("GET", "/api/v1/replicas/no/pe-0/logs", 404, "not_found"),
        ("DELETE", "/api/v1/keys/nope", 404, "not_found"),
        ("PUT", "/api/v1/nodes", 405, "method_not_allowed"),
        ("GET", "/api/v1/events?limit=0", 422, "unusable_input"),
        ("GET", "/api/v1/events?limit=many", 422, "unusable_input"),
        ("POST", "/api/v1/keys", 422, "unusable_input"),
        ("POST", "/api/v1/catalog", 422, "unusable_input"),
    ],
)
def test_every_refusal_is_problem_json(
    admin: httpx2.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = admin.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["detail"]
    assert not problem["detail"].endswith(".")


def test_a_key_is_shown_once_reaches_the_gateways_and_is_revoked(
    own_server: Live, admin: httpx2.Client
) -> None:
    made = admin.post("/api/v1/keys", json={"name": "alice"}).json()
    assert made["key"].startswith("roost-")
    assert admin.post("/api/v1/keys", json={"name": "alice"}).status_code == 409
    (listed,) = admin.get("/api/v1/keys").json()["keys"]
    assert listed["ending"] == made["key"][-4:]
    with own_server.gateway() as gateway:
        first = gateway.get("/gateway/v1/snapshot").json()
        assert [key["name"] for key in first["keys"]] == ["alice"]
        assert made["key"] not in json.dumps(first)
        admin.delete("/api/v1/keys/alice")
        seen = {key: first[key] for key in ("revision", "incarnation", "epoch")}
        second = gateway.get("/gateway/v1/snapshot", params={**seen, "wait": 30}).json()
    assert second["keys"] == []
    assert second["revision"] > first["revision"]


def test_a_whole_life_over_the_wire(own_server: Live, admin: httpx2.Client, node: WireNode) -> None:
    admin.post("/api/v1/catalog", content=CATALOG)
    wait_for(lambda: states(own_server) == [("coder-0", "placed")])
    node.obey("loading")
    assert states(own_server) == [("coder-0", "loading")]
    node.obey("ready")
    assert states(own_server) == [("coder-0", "ready")]
    with own_server.gateway() as gateway:
        (model,) = gateway.get("/gateway/v1/snapshot").json()["models"]
        assert [route["port"] for route in model["routes"]] == [node.shards[0]["port"]]
    explained = admin.get("/api/v1/explain/coder").json()
    assert explained["decisions"][0]["outcome"] == "kept"
    fleet = admin.get("/api/v1/nodes").json()
    assert fleet["allocations"][0]["replica"] == "coder-0"
    admin.delete("/api/v1/models/coder")
    wait_for(lambda: states(own_server) == [("coder-0", "draining")])

    def gone() -> bool:
        node.obey()
        return states(own_server) == []

    wait_for(gone)
    said = [event["what"] for event in admin.get("/api/v1/events").json()["events"]]
    for what in ("model.added", "replica.placed", "replica.ready", "model.deleted",
                 "replica.draining", "replica.released"):  # fmt: skip
        assert what in said


def test_events_are_paged_by_what_next_says(admin: httpx2.Client) -> None:
    for number in range(7):
        admin.post("/api/v1/keys", json={"name": f"k{number}"})
    seen, before = [], None
    while True:
        query = {"limit": 3} | ({} if before is None else {"before": before})
        page = admin.get("/api/v1/events", params=query).json()
        seen += [event["object"] for event in page["events"]]
        before = page["next"]
        if before is None:
            break
    assert [name for name in seen if name.startswith("k")] == [f"k{i}" for i in reversed(range(7))]


def test_a_plan_is_explained_and_nothing_is_placed(
    own_server: Live, admin: httpx2.Client, node: WireNode
) -> None:
    large = CATALOG.replace("min_memory_gb: 4", "min_memory_gb: 400")
    (decision,) = admin.post("/api/v1/plan", content=large).json()["decisions"]
    assert decision["outcome"] == "unplaceable"
    assert decision["tried"][0]["rejected"][0]["reasons"][0]["code"] == "memory_short"
    (brief,) = admin.post("/api/v1/plan", content=large, params={"brief": 1}).json()["decisions"]
    assert "rejected" not in brief["tried"][0]
    assert states(own_server) == []


def test_a_node_that_reports_cannot_be_deleted_and_a_silent_one_frees_what_it_held(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("silent") / "roost"
    words = ("--report-interval", "0.2", "--lost-after", "1")
    with Live(directory, *words) as server, server.admin() as admin:
        # The interval that agents are told is never below five seconds; this one is silent.
        node = WireNode(server).join()
        node.report()
        admin.post("/api/v1/catalog", content=CATALOG)
        assert admin.delete("/api/v1/nodes/n1").status_code == 409
        wait_for(lambda: states(server)[:1] == [("coder-0", "placed")])
        wait_for(lambda: admin.get("/api/v1/nodes/n1").json()["status"] == "lost")
        wait_for(lambda: ("coder-0", "lost") in states(server))
        assert admin.delete("/api/v1/nodes/n1").status_code == 204
        wait_for(lambda: states(server) == [("coder-0", "pending")])
        assert node.report().status_code == 401


def test_the_openapi_description_names_every_path(admin: httpx2.Client) -> None:
    described = admin.get("/api/openapi.json").json()
    assert {"/api/v1/nodes", "/api/v1/catalog", "/api/v1/plan"} <= set(described["paths"])
    answers = described["paths"]["/api/v1/replicas"]["get"]["responses"]["200"]
    assert answers["content"]["application/json"]["schema"]
