import asyncio
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from api.live import Live, WireNode
from roost.api.agent import _routes as agent_routes
from roost.api.app import LOCAL, OPEN, App
from roost.api.gateway import _routes as gateway_routes
from roost.api.management import management

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def every_path() -> list[str]:
    """Of every route there is; a new one is in it by itself."""
    nothing = None
    apps = (management(nothing), agent_routes(nothing), gateway_routes(nothing))  # type: ignore[arg-type]
    paths = [
        route.path
        for app in apps
        for route in app.routes
        if isinstance(route, APIRoute | Route) and route.path not in OPEN | LOCAL
    ]
    assert len(paths) > 25
    return sorted({p.replace("{name:path}", "x").replace("{model:path}", "x") for p in paths})


def raw(server: Live, method: str, target: str, credential: str | None = None) -> int:
    """The status of a request whose target goes out as it is written."""
    at = urlsplit(server.url)
    assert at.hostname is not None
    header = f"authorization: Bearer {credential}\r\n" if credential else ""
    with socket.create_connection((at.hostname, at.port), timeout=30) as connection:
        connection.sendall(
            f"{method} {target} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n"
            "content-length: 0\r\n\r\n".encode()
        )
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("path", every_path())
def test_no_route_answers_without_a_credential(server: Live, path: str) -> None:
    target = path.replace("{name}", "x").replace("{token}", "x").replace("{id}", "x")
    for method in METHODS:
        status = raw(server, method, target)
        if (method, target) == ("POST", "/agent/v1/join"):
            assert status == 422, "a join shows its token in its body"
        else:
            assert status == 401, method


@pytest.mark.parametrize(
    "target",
    [
        "//api/v1/nodes",
        "/API/v1/nodes",
        "/api/v1/../v1/nodes",
        "/healthz/../api/v1/nodes",
        "/healthz/",
        "/healthz%2f..%2fapi%2fv1%2fnodes",
        "/api%2fv1%2fnodes",
        "/api/v1/nodes/",
        "/readyz;/api/v1/nodes",
        "/docs",
        "/redoc",
        "/openapi.json",
        "/api/openapi.json",
        "/agent/v1/join/",
        "/agent/v1//join",
        "/agent/../api/v1/nodes",
        "/gateway/v1/snapshot/",
        "/",
        "/%00",
    ],
)
def test_no_spelling_of_a_path_gets_around_the_door(server: Live, target: str) -> None:
    assert raw(server, "GET", target) == 401


def test_health_is_all_that_is_open(server: Live) -> None:
    assert {path: raw(server, "GET", path) for path in OPEN} == dict.fromkeys(OPEN, 200)
    assert {raw(server, "POST", path) for path in OPEN} == {405}


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "roost.example", None])
def test_metrics_want_the_credential_from_the_network(address: str | None) -> None:
    said: list[int] = []

    async def ask() -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/metrics",
            "headers": [],
            "server": address and (address, 7400),
        }

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                said.append(message["status"])

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request"}

        await App(None)(scope, receive, send)  # type: ignore[arg-type]  # it is not asked

    asyncio.run(ask())
    assert said == [401]


def test_metrics_are_open_on_the_machine_itself(server: Live) -> None:
    assert raw(server, "GET", "/metrics") == 200


def test_each_credential_opens_its_own_door_only(server: Live) -> None:
    node = WireNode(server, name="doors").join()
    opens = {
        "/api/v1/nodes": server.secret("admin_credential"),
        "/agent/v1/orders": node.credential,
        "/gateway/v1/snapshot": server.secret("gateway_credential"),
    }
    for path, own in opens.items():
        for credential in opens.values():
            assert (raw(server, "GET", path, credential) == 200) == (credential == own)
        assert raw(server, "GET", path, own[:-1]) == 401
        assert raw(server, "GET", path, own + "x") == 401


def test_a_node_whose_credential_is_not_known_is_told_so_by_code(server: Live) -> None:
    with server.client("x" * 43) as client:
        answer = client.post("/agent/v1/report", content=b"{}")
    assert (answer.status_code, answer.json()["code"]) == (401, "unknown_credential")


def test_the_secrets_are_files_of_their_owner(server: Live) -> None:
    directory = server.directory / "server"
    assert directory.stat().st_mode & 0o777 == 0o700
    for file in directory.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file.name


def test_no_secret_is_in_the_log_the_events_or_an_error(own_server: Live, node: WireNode) -> None:
    with own_server.admin() as admin:
        token = admin.post("/api/v1/tokens", json={}).json()["token"]
        key = admin.post("/api/v1/keys", json={"name": "k"}).json()["key"]
        errors = [
            WireNode(own_server, name="!").ask_to_join(token).text,
            WireNode(own_server, name="q").ask_to_join(token[:-1]).text,
            admin.get("/api/v1/keys").text,
            admin.get("/api/v1/tokens").text,
            admin.get("/api/v1/events?limit=1000").text,
            admin.get("/api/v1/nodes").text,
            admin.post("/api/v1/keys", json={"name": key}).text,
        ]
    secrets = [token, node.credential, own_server.secret("admin_credential")]
    command = Path(f"/proc/{own_server.process.pid}/cmdline").read_text()
    for text in (*errors[:-1], own_server.log.read_text(), command):
        for secret in (*secrets, key):
            assert secret not in text
