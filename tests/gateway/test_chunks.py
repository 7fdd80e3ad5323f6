import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.gateway.chunks import BadChunk, ChunkWalker

WHOLE = b'5\r\nhello\r\n1;name="x"\r\n \r\nA\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n'
DATA = b"hello 0123456789"


def walk(blocks: list[bytes]) -> tuple[bytes, bytes, bytes, bool]:
    """Data, what may be passed on verbatim, what is left over, and whether the body is at its end."""
    walker, rest, data, verbatim = ChunkWalker(), b"", b"", b""
    for block in blocks:
        if walker.done:
            rest += block
            continue
        joined = rest + block
        used = walker.feed(joined)
        data += b"".join(walker.data)
        verbatim += joined[: walker.forward_to]
        rest = joined[used:]
    return data, verbatim, rest, walker.done


def test_a_body_split_at_any_two_bytes_is_the_same_body() -> None:
    for one, two in itertools.combinations(range(len(WHOLE) + 1), 2):
        data, verbatim, rest, done = walk([WHOLE[:one], WHOLE[one:two], WHOLE[two:] + b"NEXT"])
        assert (data, rest, done) == (DATA, b"NEXT", True)
        assert verbatim == WHOLE[: WHOLE.index(b"0\r\nx-sum")]


def test_a_body_that_comes_byte_by_byte_is_the_same_body() -> None:
    data, verbatim, rest, done = walk([WHOLE[at : at + 1] for at in range(len(WHOLE))])
    assert (data, rest, done) == (DATA, b"", True)
    assert verbatim == WHOLE[: WHOLE.index(b"0\r\nx-sum")]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_what_was_chunked_comes_out_again(parts: list[bytes], choose: st.DataObject) -> None:
    body = b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    blocks, at = [], 0
    while at < len(body):
        size = choose.draw(st.integers(1, len(body) - at))
        blocks.append(body[at : at + size])
        at += size
    data, verbatim, rest, done = walk(blocks)
    assert (data, verbatim, rest, done) == (b"".join(parts), body[:-5], b"", True)


@pytest.mark.parametrize(
    "bad",
    [
        b"g\r\n",
        b"\r\n",
        b" 5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-1\r\n",
        b"5_0\r\n",
        b"5\nhello\r\n",
        b"5\rhello\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r0\r\n",
        b"5;a\x00b\r\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"5" + b" " * 2000,
        b"5;" + b"a" * 2000,
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n x: folded\r\n\r\n",
        b"0\r\nx : space\r\n\r\n",
        b"0\r\nx: lf\n\r\n",
        b"0\r\n" + b"x: 1\r\n" * 40 + b"\r\n",
        b"0\r\nx: " + b"a" * 3000,
        b"0\n\r\n",
    ],
)
def test_what_is_no_chunk_is_refused_however_it_is_split(bad: bytes) -> None:
    with pytest.raises(BadChunk):
        walk([bad, b""])
    with pytest.raises(BadChunk):
        walk([bad[at : at + 1] for at in range(len(bad))])


def test_an_unfinished_size_line_is_not_passed_on() -> None:
    walker = ChunkWalker()
    assert walker.feed(b"3\r\nabc\r\n1") == 8
    assert walker.forward_to == 8
    assert walker.between_chunks


def test_the_middle_of_a_chunk_is_not_between_chunks() -> None:
    walker = ChunkWalker()
    walker.feed(b"3\r\nab")
    assert not walker.between_chunks
    walker.feed(b"c\r")
    assert not walker.between_chunks
    walker.feed(b"\n")
    assert walker.between_chunks
