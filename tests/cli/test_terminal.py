"""What changes when somebody looks: on a real terminal lines fit and states have colours."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fake_api import Asked, FakeApi

ROOST = str(Path(sys.executable).with_name("roost"))
CAUSE = "no profile fits: nearest is gpu-c, cordoned since the fans failed, and so on and on"
ROW = {"replica": "coder-0", "model": "coder", "state": "pending", "cause": CAUSE, "shards": []}


def on_a_terminal(
    words: Sequence[str], columns: int, env: Mapping[str, str] | None = None
) -> list[str]:
    """The lines that a command prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [ROOST, "ctl", *words], stdout=theirs, env=clean | {"TERM": "xterm"} | (dict(env or {}))
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert process.wait(60) == 0
    return said.decode().split("\r\n")[:-1]


def test_the_last_column_is_cut_to_the_width_and_whole_elsewhere(api: FakeApi) -> None:
    api.answers["GET /api/v1/replicas"] = {"replicas": [ROW]}
    header, line = on_a_terminal(["replicas"], 110, {"NO_COLOR": "1"})
    assert len(line) == 110
    assert line.endswith("…")
    assert len(header) <= 110
    assert on_a_terminal(["replicas"], 300, {"NO_COLOR": "1"})[1].endswith(CAUSE)


def test_states_have_colours_only_where_they_are_wanted(api: FakeApi) -> None:
    api.answers["GET /api/v1/replicas"] = {"replicas": [{**ROW, "state": "failed"}]}
    assert "\x1b[31mfailed" in on_a_terminal(["replicas"], 200)[1]
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in "".join(on_a_terminal(["replicas"], 200, env))
    piped = subprocess.run([ROOST, "ctl", "replicas"], capture_output=True, timeout=60, check=True)
    assert b"\x1b" not in piped.stdout


def test_ctrl_c_ends_a_follower_without_a_traceback(api: FakeApi) -> None:
    asked = threading.Event()
    end = threading.Event()

    def answer(_asked: Asked) -> object:
        asked.set()
        end.wait(60)
        return b""

    api.answers["GET /api/v1/replicas/m-0/logs"] = answer
    process = subprocess.Popen(
        [ROOST, "ctl", "logs", "m-0", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asked.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    end.set()
    assert (process.returncode, out, err.strip()) == (130, "", "")
