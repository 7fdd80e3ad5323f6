"""An agent and its server: joining, obeying, and what happens when the server is not what it was."""

import asyncio
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agent.conftest import Story
from agent.node import Node, fake_llama_server
from agent.test_supervision import fake, lives
from agent.wire_server import WireServer
from roost.agent.obedience import refusal
from roost.domain.replica import Desired, ReplicaState

Tell = Callable[[Story], None]


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """The agent's, with a token file and the fake engine."""
    token = tmp_path / "token"
    token.write_text("token-1\n")
    return ("--token-file", str(token), "--llama-server", str(fake_llama_server(tmp_path)))


def test_an_agent_joins_once_and_keeps_its_identity_and_its_credential(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start("--join", "token-1", "--label", "pool=code", "--port-range", "22000-22009")
        report = await server.next_report()
        (join,) = server.joins
        assert join.name == "node-a"
        assert report.identity == join.identity == node.identity()
        assert report.facts.labels["pool"] == "code"
        assert report.facts.labels["roost/os"] == "linux"
        assert report.facts.memory_bytes
        assert report.facts.engines == frozenset({"llama.cpp"})
        assert report.address == "127.0.0.1"
        assert report.port_range == (22000, 22009)
        assert report.sequence >= 1
        assert await node.end() == 0
        await node.start("--label", "pool=code")
        again = await server.next_report()
        assert len(server.joins) == 1
        assert again.identity == report.identity
        assert again.started_at > report.started_at
        for path in (node.directory / "agent").rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path

    tell(story)


def test_a_refused_token_ends_the_agent_with_7_and_says_why(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "roost.cli.main", "agent", "--server", server.url),
            *("--join", "wrong-token", "--dir", str(node.directory)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode == 7
        assert b"this token is not known here" in said
        assert b"wrong-token" not in said
        assert b"Traceback" not in said

    tell(story)


def test_an_agent_without_a_token_says_how_to_get_one(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "roost.cli.main", "agent", "--server", server.url),
            *("--dir", str(node.directory)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode == 7
        assert b"roost ctl token create" in said

    tell(story)


def test_a_server_that_is_away_is_waited_for(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        server.mode = "reset"
        process = await node.start()
        await server.until(lambda: server.connections >= 2 or None)
        assert process.returncode is None
        server.mode = "ok"
        await server.until(lambda: server.joins or None)
        await server.next_report()

    tell(story)


def test_sigterm_ends_an_agent_that_has_not_joined_yet(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        server.mode = "reset"
        await node.start()
        await server.until(lambda: server.connections >= 1 or None)
        assert await node.end() == 0

    tell(story)


def test_a_node_that_asks_for_another_name_keeps_its_own_and_says_so(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start()
        await server.next_report()
        assert await node.end() == 0
        assert "agent.name_stays" not in node.log.read_text()
        server.reports.clear()
        await node.start("--name", "other")
        await server.next_report()
        assert await node.end() == 0
        (said,) = [line for line in node.log.read_text().splitlines() if "name_stays" in line]
        assert "node-a" in said
        assert "other" in said
        assert len(server.joins) == 1

    tell(story)


def test_a_second_agent_on_a_directory_is_refused_with_a_sentence(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        first = await node.start()
        await server.next_report()
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "roost.cli.main", "agent", "--server", server.url),
            *("--join", "token-1", "--dir", str(node.directory)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await second.communicate()
        assert second.returncode == 1
        assert b"another agent works on" in said
        assert f"process {first.pid}".encode() in said

    tell(story)


def test_an_emptied_server_gets_the_node_back_with_its_engines_once_there_is_a_token(
    tell: Tell, words: tuple[str, ...], tmp_path: Path
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1")
        await server.want(spec)
        ready = await server.state("p1", ReplicaState.READY)
        # Another database: no credential, no token, another fleet, nothing desired.
        server.credentials.clear()
        server.tokens.clear()
        server.fleet, server.desired = "fleet-2", None
        server.reports.clear()
        server.drop_connections()
        await server.until(lambda: server.refusals >= 2 or None)
        assert ready.pid is not None
        assert lives(ready.pid)
        (tmp_path / "token").write_text("token-2\n")
        server.tokens.add("token-2")
        await server.until(lambda: len(server.joins) == 2 or None)
        assert server.joins[0].identity == server.joins[1].identity
        await server.want()
        orphan = await server.told(lambda s: s.spec is not None)
        assert (orphan.pid, orphan.state, orphan.spec) == (ready.pid, ReplicaState.READY, spec)
        # The new fleet takes it over, with a lower revision than the old one had.
        await server.want(spec)
        adopted = await server.told(lambda s: s.spec is None)
        assert adopted.pid == ready.pid

    tell(story)


def test_a_desired_state_of_another_fleet_or_an_older_epoch_changes_nothing(
    tell: Tell, words: tuple[str, ...]
) -> None:
    async def story(server: WireServer, node: Node) -> None:
        await node.start(*words)
        spec = fake("p1")
        await server.want(spec, epoch=5)
        ready = await server.state("p1", ReplicaState.READY)
        await server.want(stop=("p1",), epoch=4, revision=99)
        await server.until(lambda: any("older" in p for p in server.reports[-1].problems) or None)
        await server.want(stop=("p1",), epoch=6, fleet="fleet-9")
        await server.until(lambda: any("fleet-9" in p for p in server.reports[-1].problems) or None)
        # Also not after a restart of the agent.
        await node.end()
        await node.start(*words)
        await server.next_report()
        await server.want(stop=("p1",), epoch=4, revision=100)
        await server.until(lambda: any("older" in p for p in server.reports[-1].problems) or None)
        still = await server.state("p1", ReplicaState.READY)
        assert still.pid == ready.pid
        await server.want(stop=("p1",), epoch=6)
        await server.state("p1", ReplicaState.STOPPED)
        await server.until(lambda: not server.reports[-1].problems or None)

    tell(story)


def test_keys_and_values_of_a_newer_server_are_no_reason_to_stop(
    tell: Tell, words: tuple[str, ...]
) -> None:
    del words
    body = msgspec.json.encode(Desired(fleet="f", incarnation=1, epoch=1, revision=1))
    newer = body[:-1] + b',"a_new_key":{"x":[1]}}'
    assert msgspec.json.decode(newer, type=Desired) == msgspec.json.decode(body, type=Desired)


def test_descriptors_stay_flat_while_every_connection_is_reset(tell: Tell) -> None:
    async def story(server: WireServer, node: Node) -> None:
        process = await node.start()
        await server.next_report()

        def descriptors() -> int:
            return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))

        before = descriptors()
        server.mode = "reset"
        server.drop_connections()
        seen = server.connections
        await server.until(lambda: server.connections >= seen + 9 or None)
        assert descriptors() <= before + 3
        server.mode = "ok"
        await server.next_report()
        assert process.returncode is None

    tell(story)


@pytest.mark.parametrize(
    ("offered", "obeyed"),
    [
        ((1, 1, 2), True),
        ((1, 1, 1), True),
        ((1, 2, 0), True),
        ((2, 0, 0), True),
        ((1, 1, 0), False),
        ((1, 0, 9), False),
        ((0, 9, 9), False),
    ],
)
def test_of_one_fleet_nothing_lower_is_obeyed(offered: tuple[int, int, int], obeyed: bool) -> None:
    known = Desired(fleet="f", incarnation=1, epoch=1, revision=1)
    incarnation, epoch, revision = offered
    new = Desired(fleet="f", incarnation=incarnation, epoch=epoch, revision=revision)
    assert (refusal(new, known, fleet="f") is None) == obeyed
    # Another fleet's numbers say nothing about this one's.
    other = Desired(fleet="g", incarnation=9, epoch=9, revision=9)
    assert refusal(new, other, fleet="f") is None
    assert refusal(new, known, fleet="g") is not None
