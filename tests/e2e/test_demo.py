"""`roost demo`: a real answer, and nothing left behind."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from running import environment, processes_of, roost, wait_for


def test_it_prints_a_real_answer_and_leaves_no_process(tmp_path: Path) -> None:
    directory = tmp_path / "demo state"
    ran = subprocess.run(
        roost("demo", "--exit", "--dir", str(directory)),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = re.search(
        r"^> .*\n(?P<answer>(.|\n)+?)\n\d+ tokens, [\d.]+ tokens/s", ran.stdout, re.MULTILINE
    )
    assert said is not None, ran.stdout
    assert len(said["answer"].split()) >= 3
    assert "\x1b" not in ran.stdout  # plain lines without a terminal
    assert processes_of(directory) == []
    again = subprocess.run(
        roost("demo", "--exit", "--dir", str(directory)),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "tokens/s" in again.stdout


@pytest.mark.parametrize("moment", ["starting Roost", "answer:", "applied", "ready after"])
def test_ctrl_c_at_any_moment_of_the_start_leaves_no_process(tmp_path: Path, moment: str) -> None:
    directory, out = tmp_path / "state", tmp_path / "out"
    with out.open("wb") as stream:
        process = subprocess.Popen(
            roost("demo", "--exit", "--dir", str(directory)),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    wait_for(lambda: moment in out.read_text(), every_s=0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(90) == 0, out.read_text()
    assert processes_of(directory) == [], out.read_text()
    assert not (directory / "up.lock").exists()
