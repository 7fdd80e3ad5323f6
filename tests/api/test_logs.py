import threading
from collections.abc import Iterator

import pytest

from api.live import CATALOG, Live, WireNode, states, wait_for


@pytest.fixture(scope="module")
def running(server: Live) -> WireNode:
    node = WireNode(server).join()
    node.report()
    with server.admin() as admin:
        admin.post("/api/v1/catalog", content=CATALOG)
    wait_for(lambda: states(server) == [("coder-0", "placed")])
    node.obey()
    return node


class Sender(threading.Thread):
    """The agent's part: takes one order and sends pieces for as long as it may."""

    def __init__(self, node: WireNode, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self.node = node
        self.pieces = pieces
        self.order: dict[str, object] = {}
        self.sent = 0
        self.ended = threading.Event()

    def run(self) -> None:
        def counted() -> Iterator[bytes]:
            for piece in self.pieces:
                self.sent += len(piece)
                yield piece

        with self.node.client() as client:
            (self.order,) = client.get("/agent/v1/orders", params={"wait": 30}).json()["logs"]
            try:
                client.post(f"/agent/v1/logs/{self.order['id']}", content=counted())
            except OSError:
                pass
            except Exception as error:
                if type(error).__module__.partition(".")[0] not in {"httpx2", "httpcore2"}:
                    raise
        self.ended.set()


def test_a_log_comes_from_the_agent_as_it_is(server: Live, running: WireNode) -> None:
    wanted = "ü\x00\xff line\r\n".encode("latin-1") * 5000
    sender = Sender(running, iter([wanted[:10], wanted[10:]]))
    sender.start()
    with server.admin() as admin:
        answer = admin.get("/api/v1/replicas/coder-0/logs", params={"tail": 7, "runs_back": 2})
    sender.join(60)
    assert answer.content == wanted
    assert answer.headers["content-type"].startswith("text/plain")
    assert sender.order["tail_lines"] == 7
    assert (sender.order["runs_back"], sender.order["previous"]) == (2, True)
    assert sender.order["placement"] == running.shards[0]["placement"]


def test_an_empty_log_is_empty(server: Live, running: WireNode) -> None:
    sender = Sender(running, iter([]))
    sender.start()
    with server.admin() as admin:
        answer = admin.get("/api/v1/replicas/coder-0/logs")
    sender.join(60)
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_reader_that_leaves_ends_the_agents_sending_which_was_held_back_meanwhile(
    server: Live, running: WireNode
) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65_536

    sender = Sender(running, endless())
    sender.start()
    with (
        server.admin() as admin,
        admin.stream("GET", "/api/v1/replicas/coder-0/logs", params={"follow": 1}) as answer,
    ):
        assert next(answer.iter_raw())
        # The reader reads nothing more: what is on its way is bounded, and nobody's memory grows.
        before = -1
        while before != sender.sent:
            before = sender.sent
            sender.ended.wait(1)
        assert sender.sent < 100_000_000
    assert sender.ended.wait(60)
    sender.join(60)


def test_a_follower_sees_lines_as_they_come(server: Live, running: WireNode) -> None:
    go_on = threading.Event()

    def lines() -> Iterator[bytes]:
        yield b"one\n"
        assert go_on.wait(60)
        yield b"two\n"

    sender = Sender(running, lines())
    sender.start()
    with (
        server.admin() as admin,
        admin.stream("GET", "/api/v1/replicas/coder-0/logs", params={"follow": 1}) as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces) == b"one\n"
        go_on.set()
        assert b"".join(pieces) == b"two\n"
    sender.join(60)


def test_another_node_cannot_send_a_log_it_was_not_asked_for(
    server: Live, running: WireNode
) -> None:
    other = WireNode(server, name="n2").join()
    stop = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield b"right"
        assert stop.wait(60)

    sender = Sender(running, slowly())
    sender.start()
    with (
        server.admin() as admin,
        admin.stream("GET", "/api/v1/replicas/coder-0/logs", params={"follow": 1}) as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces) == b"right"
        with other.client() as client:
            refused = client.post(f"/agent/v1/logs/{sender.order['id']}", content=b"wrong")
        assert refused.status_code == 404
        stop.set()
        assert b"".join(pieces) == b""
    sender.join(60)
