"""Each part killed under a running stack: what must go on, goes on."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

from roost.run.chat import Answer, stream_chat
from running import CATALOG, Served, alive, roost, start, wait_for


def stream_in_background(served: Served) -> tuple[threading.Thread, list[Answer], threading.Event]:
    """A long answer under way; the event is set at its first token."""
    answers: list[Answer] = []
    begun = threading.Event()

    def ask() -> None:
        answers.append(
            stream_chat(
                served.stack.ready["gateway"],
                served.key,
                model="smollm2",
                question="Tell me a long story about a hen.",
                max_tokens=80,
                piece=lambda _: begun.set(),
            )
        )

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(60)
    return thread, answers, begun


def test_a_killed_engine_is_back_and_says_why(served: Served) -> None:
    before = served.stack.engine_pid()
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: served.stack.replica().get("restarts") == 1)
    row = served.stack.await_state("ready")
    assert row["shards"][0]["pid"] != before
    assert "signal 9" in row["cause"] or "SIGKILL" in row["cause"]
    assert served.await_chat().text


def test_a_killed_server_breaks_no_stream_and_finds_everything_again(served: Served) -> None:
    stack = served.stack
    engine, server = stack.engine_pid(), stack.pid("server")
    thread, answers, _ = stream_in_background(served)
    os.kill(server, signal.SIGKILL)
    assert served.chat().text  # a new request while it is away or just back
    thread.join(90)
    assert answers
    assert answers[0].completion_tokens > 1
    wait_for(lambda: stack.pid("server") != server)
    row = stack.await_state("ready")
    assert row["shards"][0]["pid"] == engine
    assert row["restarts"] == 0
    assert served.chat().text


def test_a_killed_agent_leaves_its_engine_and_adopts_it(served: Served) -> None:
    stack = served.stack
    engine, agent = stack.engine_pid(), stack.pid("agent")
    os.kill(agent, signal.SIGKILL)
    assert served.chat().text
    wait_for(lambda: stack.pid("agent") != agent)
    row = stack.await_state("ready")
    assert row["shards"][0]["pid"] == engine
    assert row["restarts"] == 0
    # Still its keeper: what it adopted, it also restarts.
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: stack.replica().get("restarts") == 1)
    stack.await_state("ready")
    assert served.await_chat().text


def test_an_emptied_server_directory_stops_nothing_and_applying_again_adopts(
    served: Served,
) -> None:
    stack = served.stack
    engine, server = stack.engine_pid(), stack.pid("server")
    os.kill(stack.process.pid, signal.SIGSTOP)  # or it starts the server while we empty
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not alive(server))
    shutil.rmtree(stack.directory / "server")
    os.kill(stack.process.pid, signal.SIGCONT)
    wait_for(lambda: stack.pid("server") != server)
    wait_for(lambda: stack.ctl("orphans", check=False).stdout.count("smollm2-0"))
    assert alive(engine)
    assert served.chat().text  # by the routes and keys that the gateway still has
    assert stack.json("replicas") == {"replicas": []}
    stack.apply(CATALOG, "--wait", "--timeout", "60")
    row = stack.await_state("ready")
    assert row["shards"][0]["pid"] == engine
    assert alive(engine)
    again = Served(stack=stack, key=stack.key())
    assert again.await_chat().text


def test_a_killed_up_leaves_nothing_behind(tmp_path: Path) -> None:
    stack = start(tmp_path / "state")
    stack.apply(CATALOG, "--wait", "--timeout", "90")
    pids = [stack.engine_pid(), stack.pid("server"), stack.pid("agent"), stack.pid("gateway")]
    stack.process.kill()
    stack.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), limit_s=60)


def test_ctrl_c_while_loading_leaves_no_process_and_no_lock(tmp_path: Path) -> None:
    stack = start(tmp_path / "state")
    stack.apply(CATALOG)
    engine = wait_for(
        lambda: (row := stack.replica()).get("shards") and row["shards"][0].get("pid")
    )
    pids = [int(engine), stack.pid("server"), stack.pid("agent"), stack.pid("gateway")]
    assert stack.stop(signal.SIGINT) == 0, stack.logs()
    assert not any(alive(pid) for pid in pids)
    assert not (stack.directory / "up.lock").exists()
    assert not (stack.directory / "up.json").exists()
    again = start(tmp_path / "state")
    again.await_state("ready")
    assert again.stop() == 0, again.logs()


def test_a_second_up_in_the_same_directory_is_refused(shared: Served) -> None:
    ran = subprocess.run(
        roost("up", "--dir", str(shared.stack.directory)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert f"already running from {shared.stack.directory}" in ran.stderr
    assert str(shared.stack.process.pid) in ran.stderr


def test_a_second_server_in_the_same_directory_is_refused(shared: Served) -> None:
    ran = subprocess.run(
        roost("server", "--dir", str(shared.stack.directory), "--port", "0"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode != 0
    assert str(shared.stack.pid("server")) in ran.stderr
