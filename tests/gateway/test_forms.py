import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.test_openai_client import using
from gateway.twins import (
    STREAM_HEAD,
    Received,
    Wire,
    answer,
    ask,
    chunk,
    engine,
    gateway,
    in_loop,
    qwen,
    request,
)
from roost.gateway.forms import MOST_PARTS, Form
from roost.gateway.naming import BadBody

TYPE = b"multipart/form-data; boundary=XX"


def part(name: str, value: bytes, more: str = "") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return b"--XX\r\n" + disposition.encode() + value + b"\r\n"


FILE = part("file", b"RIFF\x00\r\n--X\r\nname=model", '; filename="a; name=model.wav"')
MODEL = part("model", b"coder")
END = b"--XX--\r\n"


@pytest.mark.parametrize(
    ("body", "model", "stream"),
    [
        (MODEL + FILE + END, "coder", False),
        (FILE + MODEL + END, "coder", False),
        (FILE + MODEL + part("stream", b"true") + END, "coder", True),
        (part("stream", b"false") + MODEL + END, "coder", False),
        (part("model", "ü/x".encode()) + END, "ü/x", False),
        (part("model", b"") + END, "", False),
        (b"--XX\r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n--XX--", "m", False),
        (
            part("model", b"m").replace(b"XX", b"XX\r\nContent-Type: text/plain") + b"--XX--after",
            "m",
            False,
        ),
        (part("prompt", b"a") + part("prompt", b"b") + MODEL + END, "coder", False),
    ],
)
def test_the_model_and_the_wish_for_a_stream_are_read(
    body: bytes, model: str, stream: bool
) -> None:
    form = Form(body, TYPE)
    assert (form.model, form.stream) == (model, stream)
    assert form.with_model(model) == body


def test_only_the_models_value_is_exchanged() -> None:
    body = FILE + MODEL + part("prompt", b"coder coder") + END
    named = Form(body, TYPE).with_model("a-longer-name")
    assert named == body.replace(MODEL, part("model", b"a-longer-name"))


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (MODEL + END, None, "is no form"),
        (MODEL + END, b"application/json", "is no form"),
        (MODEL + END, b"multipart/form-data", "names no boundary"),
        (MODEL + END, b"multipart/form-data; boundary=", "names no boundary"),
        (MODEL + END, b"multipart/form-data; boundary=" + b"x" * 71, "names no boundary"),
        (MODEL + END, b"multipart/form-data; boundary=XX; boundary=YY", "there twice"),
        (MODEL + END, b"multipart/form-data; boundary", "cannot be read"),
        (MODEL + END, b"multipart/form-data; boundary=YY", "does not begin"),
        (b"before\r\n" + MODEL + END, TYPE, "does not begin"),
        (b"", TYPE, "does not begin"),
        (FILE + END, TYPE, "names no `model`"),
        (MODEL + MODEL + END, TYPE, "two fields `model`"),
        (MODEL, TYPE, "cut off"),
        (MODEL[:-3], TYPE, "cut off"),
        (MODEL + b"--XXX\r\n", TYPE, "something else"),
        (b"--XX\r\n\r\nm\r\n--XX--", TYPE, "has no name"),
        (b"--XX\r\nContent-Type: text/plain\r\n\r\nm\r\n--XX--", TYPE, "has no name"),
        (b"--XX\r\njunk\r\n\r\nm\r\n--XX--", TYPE, "no header"),
        (b"--XX\r\nContent-Disposition : form-data; name=model\r\n\r\nm\r\n--XX--", TYPE, "header"),
        (
            b"--XX\r\nA: b\nContent-Disposition: form-data; name=x\r\n\r\nm\r\n--XX--",
            TYPE,
            "header",
        ),
        (part("model", b"a", '; name="b"') + END, TYPE, "there twice"),
        (part("model", b"a", "; junk") + END, TYPE, "cannot be read"),
        (
            MODEL.replace(b"XX", b"XX\r\nContent-Disposition: form-data; name=a") + END,
            TYPE,
            "two dispositions",
        ),
        (part("model", b"\xff") + END, TYPE, "UTF-8"),
        (part("x", b"") * (MOST_PARTS + 1) + END, TYPE, f"more than {MOST_PARTS}"),
    ],
)
def test_what_is_no_form_or_could_be_read_in_two_ways_is_refused(
    body: bytes, content_type: bytes | None, words: str
) -> None:
    with pytest.raises(BadBody, match=words):
        Form(body, content_type)


@given(st.binary(max_size=400), st.binary(max_size=60))
def test_any_bytes_are_a_form_or_refused(body: bytes, value: bytes) -> None:
    for whole in (body, b"--XX\r\n" + body, part("model", value) + body, FILE + body + END):
        try:
            form = Form(whole, TYPE)
        except BadBody:
            continue
        assert Form(form.with_model("other"), TYPE).model == "other"


@in_loop
async def test_a_transcription_goes_through_under_the_models_own_name(tmp_path: Path) -> None:
    sound = bytes(range(256)) * 40
    async with engine(answer('{"text":"hello"}')) as one, gateway(tmp_path, qwen(one)) as it:
        got: Any = await using(
            it,
            lambda c: c.audio.transcriptions.create(
                model="coder", file=("a.wav", sound), prompt="say coder"
            ),
        )
        assert got.text == "hello"
        (received,) = one.received
        form = Form(received.body, received.header("content-type").encode())  # type: ignore[union-attr]
        assert form.model == "qwen"
        assert sound in received.body
        assert b"say coder" in received.body
        head = f"Content-Type: {TYPE.decode()}"
        again = request(FILE + MODEL + END, path="/v1/audio/translations", headers=[head])
        assert (await ask(it, again)).json == {"text": "hello"}
        assert one.received[1].path == "/v1/audio/translations"
        assert one.received[1].body == FILE + part("model", b"qwen") + END


@in_loop
async def test_a_streamed_transcription_ends_with_its_own_event(tmp_path: Path) -> None:
    events = [
        {"type": "transcript.text.delta", "delta": "hel"},
        {"type": "transcript.text.done", "text": "hello"},
    ]

    async def script(received: Received, wire: Wire) -> None:
        await wire.send(STREAM_HEAD)
        whole = b"cut" not in received.body
        for one in events[: 2 if whole else 1]:
            await wire.send(chunk(b"data: " + json.dumps(one).encode() + b"\n\n"))
        await wire.send(b"0\r\n\r\n")

    async with engine(script) as one, gateway(tmp_path, qwen(one)) as it:

        def transcribe(prompt: str) -> Any:
            return using(
                it,
                lambda c: list(
                    c.audio.transcriptions.create(
                        model="qwen", file=("a.wav", b"x"), prompt=prompt, stream=True
                    )
                ),
            )

        assert [e.type for e in await transcribe("whole")] == [e["type"] for e in events]
        with pytest.raises(Exception, match=r"end marker|closed|incomplete"):
            await transcribe("cut")


@in_loop
async def test_speech_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    sound = bytes(range(256)) * 100
    async with (
        engine(answer(sound, content_type="audio/mpeg")) as one,
        gateway(tmp_path, qwen(one)) as it,
    ):
        got: Any = await using(
            it, lambda c: c.audio.speech.create(model="coder", voice="v", input="say").read()
        )
        assert got == sound
        assert one.received[0].json["model"] == "qwen"


@in_loop
async def test_a_form_that_names_no_model_or_an_unknown_one_is_told_so(tmp_path: Path) -> None:
    async with gateway(tmp_path, qwen()) as it:
        head = f"Content-Type: {TYPE.decode()}"
        path = "/v1/audio/transcriptions"
        got = await ask(it, request(FILE + END, path=path, headers=[head]))
        assert (got.status, got.json["error"]["code"]) == (400, "invalid_body")
        got = await ask(it, request(part("model", b"nope") + END, path=path, headers=[head]))
        assert (got.status, got.json["error"]["code"]) == (404, "model_not_found")
        got = await ask(it, request('{"model":"qwen"}', path=path))
        assert got.status == 400
        assert "multipart/form-data" in got.json["error"]["message"]
