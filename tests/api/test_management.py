import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from api.live import CATALOG, Live, WireNode, states, wait_for


@pytest.fixture(scope="module")
def admin(server: Live) -> Iterator[httpx2.Client]:
    """Of one server for all tests: each has models, keys and nodes of its own."""
    with server.admin() as client:
        yield client


def catalog(name: str, **more: object) -> str:
    keys = "".join(f"\n  {key}: {value}" for key, value in more.items())
    return CATALOG.replace("name: coder", f"name: {name}{keys}")


def models(admin: httpx2.Client, *names: str) -> dict[str, str]:
    found = admin.get("/api/v1/models").json()["models"]
    return {m["model"]: m["state"] for m in found if m["model"] in names}


def state_of(server: Live, model: str) -> list[str]:
    return [state for replica, state in states(server) if replica == f"{model}-0"]


def test_a_catalog_is_applied_once_and_adds_to_what_is_there(admin: httpx2.Client) -> None:
    def apply(text: str, **query: object) -> list[str]:
        answer = admin.post("/api/v1/catalog", content=text, params=query).json()  # type: ignore[arg-type]
        assert answer["applied"] == ("dry_run" not in query)
        return [f"{c['model']} {c['change']}" for c in answer["changes"]]

    one = catalog("one", replicas=0)
    assert apply(one, dry_run=True) == ["one added"]
    assert models(admin, "one") == {}
    assert apply(one) == ["one added"]
    assert apply(one) == ["one unchanged"]
    assert apply(one.replace("4}", "5}")) == ["one changed"]
    assert apply(catalog("two", replicas=0)) == ["two added"]
    assert models(admin, "one", "two") == {"one": "stopped", "two": "stopped"}


def test_an_unusable_catalog_is_refused_with_every_problem_and_nothing_is_applied(
    admin: httpx2.Client,
) -> None:
    bad = catalog("bad") + "- name: bad\n  replcas: 2\n  profiles: []\n"
    answer = admin.post("/api/v1/catalog", content=bad, params={"filename": "c.yaml"})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "unusable_input"
    assert len(problem["problems"]) >= 2
    assert all(line.startswith("c.yaml:") for line in problem["problems"])
    assert models(admin, "bad") == {}


def test_a_name_that_an_applied_model_has_cannot_be_anothers_alias(admin: httpx2.Client) -> None:
    admin.post("/api/v1/catalog", content=catalog("taken", replicas=0))
    clash = catalog("x", aliases="[taken]")
    answer = admin.post("/api/v1/catalog", content=clash)
    assert answer.status_code == 422
    assert "the name taken is already taken's" in answer.json()["detail"]


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
        ("GET", f"/api/v1/events?before={2**63}", 422, "unusable_input"),
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


def test_a_body_that_cannot_be_read_is_problem_json_too(admin: httpx2.Client) -> None:
    headers = {"content-type": "application/json"}
    answer = admin.post("/api/v1/keys", content="[" * 100_000, headers=headers)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 400


def test_a_key_is_shown_once_reaches_the_gateways_and_is_revoked(
    server: Live, admin: httpx2.Client
) -> None:
    made = admin.post("/api/v1/keys", json={"name": "alice"}).json()
    assert made["key"].startswith("roost-")
    assert admin.post("/api/v1/keys", json={"name": "alice"}).status_code == 409
    listed = {key["name"]: key for key in admin.get("/api/v1/keys").json()["keys"]}
    assert listed["alice"]["ending"] == made["key"][-4:]
    with server.gateway() as gateway:
        first = gateway.get("/gateway/v1/snapshot").json()
        assert "alice" in [key["name"] for key in first["keys"]]
        assert made["key"] not in json.dumps(first)
        admin.delete("/api/v1/keys/alice")
        seen = {key: first[key] for key in ("revision", "incarnation", "epoch")}
        second = gateway.get("/gateway/v1/snapshot", params={**seen, "wait": 30}).json()
    assert "alice" not in [key["name"] for key in second["keys"]]
    assert second["revision"] > first["revision"]


def test_a_whole_life_over_the_wire(server: Live, admin: httpx2.Client) -> None:
    node = WireNode(server, name="life").join()
    node.facts["labels"] = {"only": "life"}
    node.report()
    wanted = catalog("life").replace("4}", "4, node_selector: {only: life}}")
    admin.post("/api/v1/catalog", content=wanted)
    wait_for(lambda: state_of(server, "life") == ["placed"])
    node.obey("loading")
    assert state_of(server, "life") == ["loading"]
    node.obey("ready")
    assert state_of(server, "life") == ["ready"]
    with server.gateway() as gateway:
        routed = gateway.get("/gateway/v1/snapshot").json()["models"]
    (model,) = [one for one in routed if one["name"] == "life"]
    assert [route["port"] for route in model["routes"]] == [node.shards[0]["port"]]
    explained = admin.get("/api/v1/explain/life").json()
    assert explained["decisions"][0]["outcome"] == "kept"
    held = admin.get("/api/v1/nodes").json()["allocations"]
    assert [one["replica"] for one in held if one["node"] == "life"] == ["life-0"]
    admin.delete("/api/v1/models/life")
    wait_for(lambda: state_of(server, "life") == ["draining"])

    def gone() -> bool:
        node.obey()
        return state_of(server, "life") == []

    wait_for(gone)
    events = admin.get("/api/v1/events?limit=1000").json()["events"]
    said = [event["what"] for event in events if event["object"] in {"life", "life-0"}]
    assert said == [
        "replica.released",
        "replica.draining",
        "model.deleted",
        "replica.ready",
        "replica.placed",
        "model.added",
        "node.joined",
    ]


def test_events_are_paged_by_what_next_says(admin: httpx2.Client) -> None:
    for number in range(7):
        admin.post("/api/v1/keys", json={"name": f"page{number}"})
    seen, before = [], None
    while True:
        query = {"limit": 3} | ({} if before is None else {"before": before})
        page = admin.get("/api/v1/events", params=query).json()
        seen += [event["object"] for event in page["events"]]
        before = page["next"]
        if before is None:
            break
    mine = [name for name in seen if name.startswith("page")]
    assert mine == [f"page{number}" for number in reversed(range(7))]


def test_a_plan_is_explained_and_nothing_is_placed(server: Live, admin: httpx2.Client) -> None:
    WireNode(server, name="planned").join().report()
    large = catalog("planned").replace("min_memory_gb: 4", "min_memory_gb: 400")
    (decision,) = admin.post("/api/v1/plan", content=large).json()["decisions"]
    assert decision["outcome"] == "unplaceable"
    # The other tests' nodes are silent by now, and not ready sooner or later.
    rejected = {row["node"]: row["reasons"] for row in decision["tried"][0]["rejected"]}
    assert [reason["code"] for reason in rejected["planned"]] == ["memory_short"]
    (brief,) = admin.post("/api/v1/plan", content=large, params={"brief": 1}).json()["decisions"]
    assert "rejected" not in brief["tried"][0]
    assert models(admin, "planned") == {}
    assert state_of(server, "planned") == []


def test_a_node_that_reports_cannot_be_deleted_and_a_silent_one_frees_what_it_held(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("silent") / "roost"
    with Live(directory, "--lost-after", "1") as server, server.admin() as admin:
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


def test_orphans_are_reaped_by_their_placements_and_stay_reaped_after_a_kill(
    tmp_path: Path,
) -> None:
    """The order was stored before it was answered: the next server gives it, unasked."""
    with Live(tmp_path / "first") as first:
        wanting = WireNode(first, name="n").join()
        wanting.report()
        with first.admin() as admin:
            admin.post("/api/v1/catalog", content=CATALOG)
            wait_for(lambda: states(first) == [("coder-0", "placed")])
        with wanting.client() as client:
            spec = client.get("/agent/v1/desired", params={"revision": 0}).json()["run"][0]
    placement = spec["placement"]
    directory = tmp_path / "second"
    with Live(directory) as server, server.admin() as admin:
        node = WireNode(server, name="n").join()
        seen = {key: spec[key] for key in ("placement", "rank", "replica", "port")}
        node.shards = [{**seen, "state": "ready", "since": 1.0, "spec": spec}]
        assert node.report().status_code == 200
        assert [o["placement"] for o in admin.get("/api/v1/orphans").json()["orphans"]] == [
            placement
        ]

        def reap(body: object) -> httpx2.Response:
            return admin.post("/api/v1/orphans/reap", json=body)

        unusable: object
        for unusable in ({}, {"all": True, "placements": [placement]}, {"place": []}):
            answer = reap(unusable)
            assert (answer.status_code, answer.json()["code"]) == (422, "unusable_input")
        missing = reap({"placements": [placement, "p-nope"]})
        assert (missing.status_code, missing.json()["hint"]) == (404, "roost ctl orphans")
        assert "there is no orphan p-nope" in missing.json()["detail"]
        told = {"placement": placement, "replica": "coder-0", "nodes": ["n"]}
        assert reap({"placements": [placement]}).json() == {
            "reaped": [{**told, "outcome": "ordered"}]
        }
        server.stop(signal.SIGKILL)
    with Live(directory) as server, server.admin() as admin:
        assert admin.get("/api/v1/orphans").json() == {"orphans": []}
        again = admin.post("/api/v1/orphans/reap", json={"placements": [placement]})
        assert again.json() == {"reaped": [{**told, "outcome": "stopping"}]}
        (event,) = [
            event
            for event in admin.get("/api/v1/events").json()["events"]
            if event["what"] == "orphan.reaped"
        ]
        assert (event["who"], event["object"]) == ("admin", "coder-0")
        node.server = server
        with node.client() as client:
            desired = client.get("/agent/v1/desired", params={"revision": 0}).json()
        assert (desired["stop"], desired["run"]) == ([placement], [])
