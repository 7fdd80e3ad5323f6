import pytest

from gateway.smuggling import SMUGGLING, lines
from roost.gateway.heads import BadHead, has_bare_lf, parse_answer, parse_request


@pytest.mark.parametrize("head", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_a_head_that_two_readers_may_read_differently_is_refused(head: bytes) -> None:
    with pytest.raises(BadHead):
        parse_request(head, most_headers=100)


def test_a_plain_head_is_read() -> None:
    head = parse_request(
        lines(
            b"Content-Length: 12",
            b"Authorization: Bearer k",
            b"Content-Type: application/json",
            b"X-Request-Id: r",
        ),
        most_headers=100,
    )
    assert (head.method, head.path, head.http11) == (b"POST", b"/v1/completions", True)
    assert (head.length, head.chunked, head.keep_alive) == (12, False, True)
    assert (head.authorization, head.request_id) == (b"Bearer k", b"r")
    assert head.lines == [b"Content-Type: application/json\r\n"]


def test_hop_by_hop_headers_and_those_that_connection_names_are_left_out() -> None:
    head = parse_request(
        lines(
            b"Connection: Keep-Alive, X-Secret ,close",
            b"x-secret: 1",
            b"Keep-Alive: timeout=5",
            b"TE: trailers",
            b"Trailer: x",
            b"Upgrade: websocket",
            b"Proxy-Connection: close",
            b"Proxy-Authorization: Basic abc",
            b"X-Api-Key: k",
            b"Cookie: session=1",
            b"Accept-Encoding: gzip",
            b"X-Kept: 1",
        ),
        most_headers=100,
    )
    assert head.lines == [b"X-Kept: 1\r\n"]
    assert not head.keep_alive


def test_an_http_1_0_client_keeps_its_connection_only_if_it_asks() -> None:
    start = b"GET / HTTP/1.0\r\n"
    assert not parse_request(lines(start=start), most_headers=9).keep_alive
    asks = parse_request(lines(b"Connection: keep-alive", start=start), most_headers=9)
    assert asks.keep_alive


def test_a_bare_lf_is_seen_before_the_head_is_whole() -> None:
    assert has_bare_lf(b"GET / HTTP/1.1\nHost")
    assert has_bare_lf(b"\n")
    assert not has_bare_lf(b"GET / HTTP/1.1\r\nHost: a\r")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: a\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
    ],
)
def test_an_engines_head_that_bends_the_grammar_is_refused(head: bytes) -> None:
    with pytest.raises(BadHead):
        parse_answer(head)


def test_an_engines_head_is_read() -> None:
    head = parse_answer(
        b"HTTP/1.1 429 Too Many\r\nServer: s\r\nContent-Type: Application/JSON; charset=utf-8\r\n"
        b"Retry-After: 7\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nContent-Length: 3\r\n\r\n"
    )
    assert (head.status, head.reason, head.length, head.keep_alive) == (429, b"Too Many", 3, False)
    assert head.content_type == b"application/json"
    assert head.retry_after
    assert head.lines == [
        b"Server: s\r\n",
        b"Content-Type: Application/JSON; charset=utf-8\r\n",
        b"Retry-After: 7\r\n",
    ]
