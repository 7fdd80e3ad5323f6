"""The parts of `roost up` that need no real stack."""

import json
import os
import random
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roost.errors import Conflict, Unavailable, Unusable
from roost.run.ports import answers, is_free, next_free_port
from roost.run.stack import Options, Stack


def listener() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def test_a_taken_port_is_passed_over() -> None:
    with listener() as taken:
        port: int = taken.getsockname()[1]
        assert not is_free(port)
        found = next_free_port(port, avoid={port + 1})
        assert found > port + 1
        assert is_free(found)


def test_with_a_port_base_a_taken_port_is_an_error_that_names_it(tmp_path: Path) -> None:
    with listener() as taken:
        port: int = taken.getsockname()[1]
        options = Options(dir=tmp_path / "state", port_base=port)
        with (
            pytest.raises(Unusable, match=f"port {port} is taken"),
            Stack(options=options, say=print) as stack,
        ):
            stack.start()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = Options(dir=tmp_path / "file" / "state")
    with pytest.raises(Unusable, match="cannot make"), Stack(options=options, say=print):
        pass


def test_a_directory_in_use_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    options = Options(dir=tmp_path)
    with Stack(options=options, say=print):
        with pytest.raises(Conflict, match="already running"), Stack(options=options, say=print):
            pass
        assert (tmp_path / "up.lock").exists()
    assert not (tmp_path / "up.lock").exists()
    with Stack(options=options, say=print):
        pass


def test_a_part_that_won_t_start_says_its_own_error_and_hint(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "roost.db").write_text("this is no database")
    with (
        pytest.raises(Unavailable, match="the server ended") as failed,
        Stack(options=Options(dir=tmp_path), say=print) as stack,
    ):
        stack.start()
    assert "roost.db" in failed.value.message


@pytest.mark.parametrize("door", ["api", "gateway", "metrics"])
def test_a_port_lost_at_the_last_moment_and_given_back_at_once_is_no_failure(
    tmp_path: Path, door: str
) -> None:
    held: list[socket.socket] = []

    class Raced(Stack):
        def _port_for(self, wanted: str) -> int:
            port = super()._port_for(wanted)
            if wanted == door and not held:
                held.append(socket.create_server(("127.0.0.1", port)))
            return port

        def _await(self, name: str, ready: Callable[[], bool]) -> None:
            try:
                super()._await(name, ready)
            except Unavailable:
                held[0].close()
                raise

    with Raced(options=Options(dir=tmp_path / "state"), say=print) as stack:
        stack.start()
        assert answers(f"{stack.api}/readyz")
        assert answers(f"{stack.metrics}/readyz")
    assert held


def test_ports_that_are_lost_every_time_are_said(tmp_path: Path) -> None:
    held: list[socket.socket] = []

    class Robbed(Stack):
        def _port_for(self, door: str) -> int:
            port = super()._port_for(door)
            held.append(socket.create_server(("127.0.0.1", port)))
            return port

    with (
        pytest.raises(Unavailable, match="no port stays free for the server") as refused,
        Robbed(options=Options(dir=tmp_path / "state"), say=print) as stack,
    ):
        stack.start()
    assert refused.value.hint == "try --port-base"
    for port in held:
        port.close()


def test_a_part_that_ends_while_another_starts_is_said_at_once(tmp_path: Path) -> None:
    class Unlucky(Stack):
        def _start_agent(self) -> None:
            super()._start_agent()
            self._processes.children["server"].process.kill()

    with (
        pytest.raises(Unavailable, match=r"the server ended \(signal 9\)"),
        Unlucky(options=Options(dir=tmp_path), say=print) as stack,
    ):
        stack.start()
    logs = {log.name: stat.S_IMODE(log.stat().st_mode) for log in (tmp_path / "logs").iterdir()}
    assert logs["server.log"] == logs["agent.log"] == 0o600


def test_nobody_listening_is_no_answer() -> None:
    with listener() as taken:
        port = taken.getsockname()[1]
    assert not answers(f"http://127.0.0.1:{port}/healthz")


def test_a_part_whose_restart_fails_is_tried_again_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    options = Options(dir=tmp_path / "state", port_base=free_ports())
    with Stack(options=options, say=said.append) as stack:
        stack.start()
        before = ready(tmp_path)
        credential = tmp_path / "state" / "server" / "admin_credential"
        kept = credential.read_text()
        credential.write_text("")  # a server does not start with that
        os.kill(before["server"], signal.SIGKILL)
        stack.serve(until=lambda: any("the server is not ready" in line for line in said))
        credential.write_text(kept)
        stack.serve(until=lambda: answers(f"{stack.api}/readyz"), timeout=60)
        assert answers(f"{stack.api}/readyz")
        after = ready(tmp_path)
        assert after["server"] != before["server"]
        assert (after["agent"], after["gateway"]) == (before["agent"], before["gateway"])


def free_ports() -> int:
    """A base whose three ports nobody has now."""
    for base in range(random.randrange(12_000, 19_000), 20_000, 7):
        if all(is_free(base + offset) for offset in (0, 80, 90)):
            return base
    raise AssertionError("no ports are free")


def ready(directory: Path) -> dict[str, Any]:
    pids: dict[str, Any] = json.loads((directory / "state" / "up.json").read_text())["pids"]
    return pids
