"""Every way in which a command can't do it: the sentence, the hint, the exit status."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fake_api import CREDENTIAL, FakeApi, Run
from roost.cli.client import Endpoint
from roost.cli.main import ROOST, main
from roost.errors import RoostError

ROOST_BIN = str(Path(sys.executable).with_name("roost"))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "bad_request", 2),
        (401, "refused", 7),
        (401, "unknown_credential", 7),
        (403, "forbidden", 7),
        (404, "not_found", 3),
        (409, "conflict", 1),
        (422, "unusable_input", 2),
        (500, "internal", 1),
        (503, "unavailable", 1),
        (503, "unreachable", 1),
        (507, "no_space", 1),
        (418, "some_new_code", 1),
        (404, "some_new_code", 3),
    ],
)
def test_each_problem_has_its_exit_status(
    api: FakeApi, run: Run, status: int, code: str, expected: int
) -> None:
    api.problem("GET /api/v1/nodes", status, code, "what is wrong", hint="roost ctl next")
    ran = run("nodes")
    assert ran.status == expected
    assert ran.out == ""
    assert ran.err == "error: what is wrong\nhint: roost ctl next\n"


def test_with_json_output_standard_output_is_json_in_every_case(api: FakeApi, run: Run) -> None:
    api.problem("GET /api/v1/nodes", 409, "conflict", "held", hint="wait")
    ran = run("nodes", "-o", "json")
    assert ran.status == 1
    assert ran.json == {"error": {"code": "conflict", "message": "held", "hint": "wait"}}
    assert ran.err == "error: held\nhint: wait\n"


def test_nobody_listening_is_unreachable(run: Run, api: FakeApi, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        (tmp_path / "state/server/endpoint.json").write_text(json.dumps({"api": url}))
        ran = run("nodes")
    assert ran.status == 5
    assert ran.err.splitlines() == [
        f"error: no server at {url}: connection refused",
        "hint: is it running? roost up, or roost server",
    ]
    assert run("nodes", "-o", "json").status == 5


def answering(reply: bytes) -> tuple[str, threading.Thread]:
    """Something that answers one connection with these bytes and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", thread


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not a Roost server"),
        (b"", "closed connection without response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "its answer is not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "broke off"),
        (b"HTTP/1.1 404 NF\r\nContent-Length: 2\r\n\r\nno", "status 404 without a reason"),
        (b"HTTP/1.1 302 F\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "status 302 without"),
        (
            b"HTTP/1.1 500 E\r\nContent-Type: application/problem+json\r\nContent-Length: 3\r\n\r\n[1]",
            "status 500 without a reason",
        ),
    ],
)
def test_what_is_no_roost_server_is_said_to_be_none(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch, reply: bytes, says: str
) -> None:
    url, thread = answering(reply)
    monkeypatch.setenv("ROOST_SERVER", url)
    ran = run("nodes")
    thread.join()
    assert ran.status == 5
    assert says in ran.err
    assert url in ran.err


def test_a_bare_401_is_refused_all_the_same(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, thread = answering(b"HTTP/1.1 401 U\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.setenv("ROOST_SERVER", url)
    ran = run("nodes")
    thread.join()
    assert ran.status == 7


def test_a_wrong_credential_is_refused_and_never_shown(
    api: FakeApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("sesame-1\n")
    monkeypatch.setenv("ROOST_CREDENTIAL_FILE", str(wrong))
    ran = run("nodes")
    assert ran.status == 7
    assert "ROOST_CREDENTIAL_FILE=FILE" in ran.err
    assert "sesame" not in ran.err
    assert "sesame" not in repr(Endpoint.find())


@pytest.mark.parametrize("content", ["", "two words\n", "a\nb\n", "\x1b[31m\n", "é\n"])
def test_a_file_that_holds_no_credential_is_refused_before_anything_is_sent(
    api: FakeApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(content)
    monkeypatch.setenv("ROOST_CREDENTIAL_FILE", str(wrong))
    ran = run("nodes")
    assert ran.status == 7
    assert ran.err == f"error: {wrong} does not hold a credential: one line of letters and digits\n"
    assert api.asked == []


def test_a_directory_without_a_server_says_how_to_start_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROOST_DIR", "ROOST_SERVER", "ROOST_CREDENTIAL_FILE"):
        monkeypatch.delenv(name, raising=False)
    ran = run("--dir", str(tmp_path), "nodes")
    assert ran.status == 5
    assert ran.err.startswith(f"error: no server has run in {tmp_path}\nhint: start one: roost up")
    assert run("nodes", "--dir", str(tmp_path)).err == ran.err


def test_a_missing_credential_file_is_named(api: FakeApi, run: Run, tmp_path: Path) -> None:
    (tmp_path / "state/server/admin_credential").unlink()
    ran = run("nodes")
    assert ran.status == 7
    assert "admin_credential does not exist" in ran.err


def test_an_endpoint_file_that_says_nothing_is_named(
    api: FakeApi, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "state/server/endpoint.json").write_text("{")
    ran = run("nodes")
    assert ran.status == 2
    assert "endpoint.json does not say where the server is" in ran.err


@pytest.mark.parametrize(
    "url", ["127.0.0.1:7400", "ftp://x", "http://", "http://u:p@h", "http://h:x", "http://[::1"]
)
def test_an_address_that_is_none_is_refused(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("ROOST_SERVER", url)
    ran = run("nodes")
    assert ran.status == 2
    assert "is not a server's address" in ran.err


def test_this_machines_credential_is_not_sent_to_another(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_SERVER", "http://192.0.2.1:7400")
    ran = run("nodes")
    assert ran.status == 7
    assert "no credential was given for http://192.0.2.1:7400" in ran.err


def test_server_and_credential_can_be_named_apart_from_any_directory(
    api: FakeApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credential"
    file.write_text(CREDENTIAL)
    monkeypatch.setenv("ROOST_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("ROOST_SERVER", api.url + "/")
    monkeypatch.setenv("ROOST_CREDENTIAL_FILE", str(file))
    api.answers["GET /api/v1/models"] = {"models": []}
    assert run("models").status == 0


@pytest.mark.parametrize(
    "words",
    [
        ["nods"],
        ["nodes", "--nope"],
        ["nodes", "-o", "yaml"],
        ["explain"],
        ["apply"],
        ["apply", "-f", "x", "--timeout", "-1"],
        ["logs", "x", "--tail", "x"],
        ["token", "create", "--uses", "0"],
    ],
)
def test_wrong_usage_is_2_and_names_the_help(run: Run, words: list[str]) -> None:
    ran = run(*words)
    assert ran.status == 2
    assert ran.out == ""
    assert "--help" in ran.err


def test_the_list_of_commands_imports_none_of_them() -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", ROOST_BIN, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in ROOST:
        assert name in ran.stdout
    assert "roost.run" not in ran.stderr
    assert "roost.cli.plan" not in ran.stderr


def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "roost.run.server":
                raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    monkeypatch.delitem(sys.modules, "roost.run.server", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    assert main(["server"]) == 1
    assert capsys.readouterr().err == (
        "error: this needs uvicorn, which is not installed\nhint: pip install 'roost[server]'\n"
    )


def test_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("roost ")


def test_nodes_loads_neither_the_server_nor_sql_nor_what_draws(api: FakeApi) -> None:
    api.answers["GET /api/v1/nodes"] = {"nodes": [], "allocations": []}
    code = (
        "import sys; from roost.cli.main import ctl; status = ctl(['nodes']); "
        "print(status, *sorted(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    status, *modules = ran.stdout.splitlines()[-1].split()
    assert status == "0"
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & {
        *("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "aiosqlite", "pydantic"),
        *("httpx2", "rich", "ruamel", "msgspec", "structlog", "asyncio", "prometheus_client"),
    }
    own = {".".join(name.split(".")[:2]) for name in modules if name.startswith("roost.")}
    assert own == {"roost.cli", "roost.domain", "roost.errors"}


def test_a_reader_that_goes_away_ends_it_quietly(api: FakeApi) -> None:
    rows = [{"replica": f"m-{n}", "state": "ready"} for n in range(20_000)]
    api.answers["GET /api/v1/replicas"] = {"replicas": rows}
    ran = subprocess.run(
        ["sh", "-c", '"$0" ctl replicas | head -1; exit 0', ROOST_BIN],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
    )
    assert ran.stdout.startswith("REPLICA")
    assert ran.stderr == ""


def test_a_full_disk_is_said_in_a_sentence(api: FakeApi) -> None:
    api.answers["GET /api/v1/models"] = {"models": [{"model": "m"}]}
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [ROOST_BIN, "ctl", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == "error: no space left on device\nhint: free some room: df -h\n"


def test_every_error_keeps_its_exit_status_over_the_wire() -> None:
    """Whatever the server raises, `ctl` ends as the error itself would."""
    from roost.cli.client import problem_to_error

    def kinds(of: type[RoostError]) -> list[type[RoostError]]:
        return [of, *(inner for kind in of.__subclasses__() for inner in kinds(kind))]

    for kind in kinds(RoostError):
        if kind.__module__ != "roost.errors" or kind.code in ("unreachable", "bad_request"):
            continue
        back = problem_to_error(kind.status, {"code": kind.code, "detail": "x"})
        assert (type(back), back.exit_code) == (kind, kind.exit_code)
