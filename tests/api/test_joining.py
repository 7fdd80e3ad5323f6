import pytest

from api.live import Live, WireNode


def token_of(server: Live, **asked: object) -> str:
    with server.admin() as admin:
        return str(admin.post("/api/v1/tokens", json=asked).json()["token"])


def test_nobody_joins_without_a_token_that_exists(server: Live) -> None:
    for token in ("", "roost-join-x", server.secret("admin_credential")):
        answer = WireNode(server, name="nobody").ask_to_join(token)
        assert (answer.status_code, answer.json()["code"]) == (401, "refused")


def test_a_token_admits_as_many_machines_as_it_says(server: Live) -> None:
    token = token_of(server, uses=2)
    answers = [WireNode(server, name=f"uses-{i}").ask_to_join(token) for i in range(3)]
    assert [a.status_code for a in answers] == [200, 200, 401]
    assert "used up" in answers[2].json()["detail"]


def test_an_expired_token_admits_nobody(server: Live) -> None:
    token = token_of(server, ttl_s=0.001)
    answer = WireNode(server, name="late").ask_to_join(token)
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_a_deleted_token_admits_nobody(server: Live) -> None:
    with server.admin() as admin:
        made = admin.post("/api/v1/tokens", json={}).json()
        assert admin.delete(f"/api/v1/tokens/{made['id']}").status_code == 204
        assert admin.delete(f"/api/v1/tokens/{made['id']}").status_code == 404
    assert WireNode(server, name="late").ask_to_join(made["token"]).status_code == 401


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "x" * 64, "<b>", "a\n"])
def test_a_name_that_could_harm_is_refused(server: Live, name: str) -> None:
    node = WireNode(server, name=name, identity="identity-of-a-bad-name")
    answer = node.ask_to_join(token_of(server))
    assert answer.status_code == 422
    assert "node's name" in answer.json()["detail"]


def test_a_refused_machine_uses_nothing_of_its_token_up(server: Live) -> None:
    token = token_of(server)
    bad = WireNode(server, name="?", identity="identity-1")
    assert bad.ask_to_join(token).status_code == 422
    assert WireNode(server, name="unused").ask_to_join(token).status_code == 200


def test_a_name_that_another_machine_holds_is_refused_saying_whose_it_is(server: Live) -> None:
    WireNode(server, name="held", identity="first-machine").join().report()
    other = WireNode(server, name="held", identity="second-machine")
    answer = other.ask_to_join(token_of(server))
    assert answer.status_code == 409
    assert "held is held by another machine" in answer.json()["detail"]


def test_the_same_machine_joins_again_under_its_old_name_and_its_old_credential_ends(
    server: Live,
) -> None:
    node = WireNode(server, name="again").join()
    old = node.credential
    again = WireNode(server, name="renamed", identity="identity-of-again")
    answer = again.ask_to_join(token_of(server)).json()
    assert answer["node"] == "again"
    with server.client(old) as client:
        assert client.get("/agent/v1/orders").status_code == 401


def test_a_copy_of_a_running_machine_is_refused_naming_the_node(server: Live) -> None:
    node = WireNode(server, name="original", boot_id="boot-1").join()
    node.report()
    copy = WireNode(server, name="x", identity="identity-of-original", boot_id="boot-2")
    answer = copy.ask_to_join(token_of(server))
    assert answer.status_code == 409
    assert "identity is node original's" in answer.json()["detail"]
    node.boot_id = "boot-1"
    assert node.join().report().status_code == 200


def test_a_node_cannot_speak_for_another(server: Live) -> None:
    one = WireNode(server, name="one").join()
    two = WireNode(server, name="two").join()
    two.report()
    answer = one.report(identity="identity-of-two")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "10.9.8.7",
        "localhost",
        "metadata.internal",
        "http://169.254.169.254/",
        "user:pw@host",
        "file:///etc/passwd",
        "::ffff:10.9.8.7",
        "0.0.0.0",  # noqa: S104 - it is refused
        "224.0.0.1",
        "",
    ],
)
def test_engines_are_only_reached_where_their_node_speaks_from(server: Live, address: str) -> None:
    node = WireNode(server, name="address", identity="identity-of-address").join()
    assert node.report(address=address).status_code in {403, 422}


def test_a_mapped_spelling_of_the_nodes_own_address_is_its_own(server: Live) -> None:
    node = WireNode(server, name="mapped").join()
    assert node.report(address="::ffff:127.0.0.1").status_code == 200


@pytest.mark.parametrize("ports", [[22, 22], [80, 100], [30000, 20000], [60000, 70000]])
def test_a_port_range_that_engines_may_not_have_is_refused(server: Live, ports: list[int]) -> None:
    node = WireNode(server, name="ports", identity="identity-of-ports").join()
    assert node.report(port_range=ports).status_code == 422


def test_an_address_that_the_operator_allows_is_taken(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("allowed") / "roost"
    with Live(directory, "--allow-address", "10.0.0.0/8") as server:
        node = WireNode(server).join()
        assert node.report(address="10.9.8.7").status_code == 200
        assert node.report(address="11.0.0.1").status_code == 403


def test_agents_of_other_versions_are_understood(server: Live) -> None:
    newer = WireNode(server, name="newer").join()
    newer.facts["gpus"] = [{"index": 0, "gpu_class": "h100", "new_key": 1}]
    newer.facts["rdma2"] = {"x": 1}
    assert newer.report(new_top=[1], protocol=9, agent_version="9.9").status_code == 200
    older = WireNode(server, name="older").join()
    older.facts = {"memory_bytes": 10**9}
    assert older.report(address=None, port_range=None).status_code == 200
    with server.admin() as admin:
        rows = {row["name"]: row for row in admin.get("/api/v1/nodes").json()["nodes"]}
    assert rows["newer"]["agent_version"] == "9.9"
    assert [rows["older"][key] for key in ("gpus", "fabrics", "storage", "engines")] == [None] * 4
    assert rows["older"]["ready"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"identity": 1}', b"\xff\xfe", b"null"])
def test_a_report_that_cannot_be_read_is_a_problem_with_a_sentence(
    server: Live, body: bytes
) -> None:
    node = WireNode(server, name="garbled", identity="identity-of-garbled").join()
    with node.client() as client:
        answer = client.post("/agent/v1/report", content=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_report_larger_than_is_read_is_refused(server: Live) -> None:
    node = WireNode(server, name="large").join()
    assert node.report(problems=["x" * 1_100_000]).status_code == 413


def test_keys_of_a_newer_agent_are_ignored_and_named_in_the_log_once_a_node(server: Live) -> None:
    nodes = [WireNode(server, name=f"newer-{n}").join() for n in range(2)]
    for _ in range(3):
        for node in nodes:
            facts = {**node.facts, "gpus": [{"index": 0, "gpu_class": "h100", "sparkle": 1}]}
            assert node.report(agent_version="99.0", quantum={}, facts=facts).status_code == 200
    said = [line for line in server.log.read_text().splitlines() if "report.unknown_keys" in line]
    for node in nodes:
        (mine,) = [line for line in said if node.name in line]
        assert "facts.gpus[].sparkle, quantum" in mine
        assert "99.0" in mine
