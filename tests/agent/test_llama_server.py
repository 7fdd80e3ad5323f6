"""The launcher over xllamacpp, as a process: it is to end and to speak as `llama-server` does."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.bad_models import bad_model
from agent.node import KEY, free_port, shard, small_model
from roost.domain.profile import Engine
from roost.engines import adapter
from roost.engines.adapter import Exit, Site

PROGRAM = (sys.executable, "-P", "-m", "roost.agent.llama_server")


def ended(*args: str, prefix: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Exit status, the log, and the cause that the adapter reads out of both."""
    done = subprocess.run(
        [*prefix, *PROGRAM, *args],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=100,
    )
    log = done.stdout + done.stderr
    found = adapter(Engine.LLAMA_CPP).ended(Exit(status=done.returncode, log=log), shard())
    return done.returncode, log, found.cause


def status(port: int, path: str = "/health", key: str | None = None) -> int | None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        client.request("GET", path, headers=headers)
        return client.getresponse().status
    except OSError:
        return None
    finally:
        client.close()


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("missing", "cannot open the model file {model}: no such file or directory"),
        ("directory", "{source} is empty or a directory (failed to read magic)"),
        ("empty", "{source} is empty or a directory (failed to read magic)"),
        ("corrupt", "{source} is not a GGUF file (invalid magic characters)"),
        ("truncated", "{source} is truncated or corrupt: tensor"),
        ("cut in its head", "{source} is truncated or corrupt: failed to read key-value pairs"),
        ("of a later format", "{source} is of GGUF version 99, and this build of llama.cpp knows"),
        ("of an unknown architecture", "this build of llama.cpp does not know the architecture"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_it_with_1_and_the_cause(
    tmp_path: Path, kind: str, cause: str
) -> None:
    model = bad_model(kind, tmp_path)
    code, _, why = ended("-m", str(model), "--port", str(free_port()))
    assert code == 1
    # llama.cpp's last words come from another thread; the line with the cause is before them.
    assert why.startswith(
        "exit status 1: " + cause.format(model=model, source=shard().profile.source)
    )


def test_a_taken_port_ends_it_with_1_and_is_told_apart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, log, why = ended("-m", str(small_model()), "--port", str(port))
    assert code == 1
    assert why == f"exit status 1: cannot listen on 127.0.0.1 port {port}: it is taken"
    assert adapter(Engine.LLAMA_CPP).ended(Exit(status=code, log=log), shard()).port_taken


def test_more_memory_than_there_is_ends_it_with_the_cause() -> None:
    # 3 GB of address space, and a context that wants more.
    args = ("-m", str(small_model()), "--port", str(free_port()), "-c", "400000", "-np", "1")
    code, _, why = ended(*args, "-fit", "off", prefix=("prlimit", "--as=3000000000"))
    assert code != 0
    assert "out of memory" in why


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--x",), "error: invalid argument: --x"),
        (("--port", "1"), "error: -m, --model is required"),
        (("-m",), 'error while handling argument "-m": expected value for argument'),
        (("-m", "x", "-c", "many"), 'error while handling argument "-c"'),
        (("-m", "x", "--pooling", "much"), 'error while handling argument "--pooling": unknown'),
        (("-m", "x", "-dev", "CUDA0"), 'error while handling argument "-dev": this build has no'),
    ],
)
def test_a_command_line_that_cannot_be_used_ends_it_with_1(
    args: tuple[str, ...], said: str
) -> None:
    code, log, _ = ended(*args)
    assert code == 1
    assert log.startswith(said)
    assert "Traceback" not in log


def test_it_loads_serves_with_its_key_and_ends_with_0_also_with_a_request_in_flight() -> None:
    spec = replace(shard(), port=free_port())
    site = Site(program=PROGRAM, source=str(small_model()), threads=1)
    argv = adapter(Engine.LLAMA_CPP).argv(spec, site)
    env = {**os.environ, **adapter(Engine.LLAMA_CPP).env(spec, site)}
    process = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL)
    try:
        seen: list[int | None] = []
        deadline = time.monotonic() + 60
        while not seen or seen[-1] != 200:
            assert time.monotonic() < deadline, seen
            answer = status(spec.port)
            if not seen or seen[-1] != answer:
                seen.append(answer)
            time.sleep(0.005)
        # Refused before it listens, 503 while it loads; a slow look may miss one of them.
        assert set(seen[:-1]) <= {None, 503}
        assert status(spec.port, "/v1/models") in {200, 401}
        assert status(spec.port, "/metrics") == 401
        assert status(spec.port, "/metrics", KEY) == 200
        with socket.create_connection(("127.0.0.1", spec.port)) as client:
            body = (
                b'{"messages":[{"role":"user","content":"count"}],"max_tokens":400,"stream":true}'
            )
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
                + KEY.encode()
                + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
                + body
            )
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
