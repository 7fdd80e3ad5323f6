"""A program of the operator's own behind the gateway, and what a stack says that may not run one."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from roost.run.chat import stream_chat
from running import alive, start, wait_for

CATALOG = f"""\
models:
- name: org/mine
  profiles:
  - name: own
    engine: command
    command: {json.dumps([sys.executable, "-m", "roost.testing.fake_engine"])}
    args: ["--host", "{{host}}", "--port", "{{port}}", "--alias", "{{model}}", "-np", "{{slots}}"]
    slots: 2
    drain_timeout_s: 5
    metrics:
      running: ["llamacpp:requests_processing"]
      waiting: ["llamacpp:requests_deferred"]
"""


def test_a_command_is_placed_answers_clients_and_ends_with_the_stack(tmp_path: Path) -> None:
    stack = start(tmp_path / "state", "--allow-command")
    try:
        stack.apply(CATALOG, "--wait", "--timeout", "90")
        row = stack.await_state("ready", "org/mine-0")
        assert (row["running"], row["waiting"], row["kv_usage"]) == (0, 0, None)
        answer = stream_chat(
            stack.ready["gateway"], stack.key(), model="org/mine", question="?", max_tokens=3
        )
        assert answer.text.split() == ["w0", "w1", "w2"]
        node = stack.json("nodes")["nodes"][0]
        assert "command" in node["engines"]
        pid = stack.engine_pid("org/mine-0")
    except BaseException:
        stack.stop()
        raise
    assert stack.stop() == 0, stack.logs()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_engines_end_with_the_stack_also_when_their_agent_is_killed(
    tmp_path: Path, when: str
) -> None:
    stack = start(tmp_path / "state", "--allow-command")
    try:
        stack.apply(CATALOG, "--wait", "--timeout", "90")
        pid = stack.engine_pid("org/mine-0")
        agent = stack.pid("agent")
        if when == "before":
            stack.process.send_signal(signal.SIGSTOP)
            os.kill(agent, signal.SIGKILL)
            stack.process.send_signal(signal.SIGTERM)
            stack.process.send_signal(signal.SIGCONT)
        else:
            log = tmp_path / "state" / "logs" / "agent.log"
            stack.process.send_signal(signal.SIGTERM)
            wait_for(lambda: '"phase": "draining"' in log.read_text(), every_s=0.02)
            os.kill(agent, signal.SIGKILL)
    finally:
        assert stack.process.wait(timeout=90) == 0, stack.logs()
    assert not alive(pid)


def test_without_leave_it_is_placed_nowhere_and_the_reason_is_told(tmp_path: Path) -> None:
    stack = start(tmp_path / "state")
    try:
        ran = stack.apply(CATALOG, "--wait", "--timeout", "60", check=False)
        assert ran.returncode == 4, ran.stdout + ran.stderr
        assert "does not have command installed" in ran.stdout + ran.stderr
        explained = stack.ctl("explain", "org/mine").stdout
        assert "does not have command installed" in explained
        assert stack.engine_specs() == []
    finally:
        assert stack.stop() == 0, stack.logs()
