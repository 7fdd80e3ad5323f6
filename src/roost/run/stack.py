"""One machine's whole fleet: server, agent and gateway, started, watched and stopped together."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from roost.cli.client import Client, Endpoint
from roost.errors import NotFound, RoostError, Unavailable, Unreachable, Unusable
from roost.files import Lock, write_private
from roost.run.ports import ADDRESS_IN_USE, answers, is_free, next_free_port
from roost.run.processes import Child, Processes

WANTED_PORTS: Final = {"api": 7400, "gateway": 7480, "metrics": 7490}
_START_LIMIT_S: Final = 60
_STOP_LIMIT_S: Final = {"gateway": 35.0, "agent": 150.0, "server": 10.0}
_SECOND_STOP_LIMIT_S: Final = 30.0
_LONGEST_DELAY_S: Final = 30.0
_START_AGAIN_S: Final = 5.0
"""After a start that the machine refused: no memory, no processes, no space."""
_TOKEN_TTL_S: Final = 600
_TOKEN_TTL_A_NODE_S: Final = 1
"""More, for each node that joins with it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `roost up` was asked for."""

    dir: Path
    model_dirs: tuple[Path, ...] = ()
    allow_command: bool = False
    workers: int = 1
    port_base: int | None = None
    """First port wanted; `None`: 7400, 7480, 7490 or the next free ones."""
    ready_file: Path | None = None
    fake_fleet: Path | None = None
    """Nodes of this file, made up, instead of this machine."""
    nodes: int = 1
    """How many will join."""
    engines: str = "in-process"
    """What the engines of made-up nodes are."""


@dataclass(kw_only=True)
class Stack:
    """The three processes on loopback. A context; leaving it stops everything that was started."""

    options: Options
    say: Callable[[str], None]
    ports: dict[str, int] = field(default_factory=dict)
    _processes: Processes = field(init=False)
    _lock: Lock | None = None
    _restart_at: dict[str, float] = field(default_factory=dict)
    _started: bool = False
    """All three have answered once; from then on one that ends is started again."""

    def __post_init__(self) -> None:
        self._processes = Processes(log_dir=self.options.dir / "logs")

    # -- addresses -------------------------------------------------------------------------------

    @property
    def api(self) -> str:
        """The management API."""
        return f"http://127.0.0.1:{self.ports['api']}"

    @property
    def gateway(self) -> str:
        """The OpenAI endpoint."""
        return f"http://127.0.0.1:{self.ports['gateway']}"

    @property
    def metrics(self) -> str:
        """Where the gateway answers about itself."""
        return f"http://127.0.0.1:{self.ports['metrics']}"

    @property
    def stopping(self) -> bool:
        """Somebody asked to stop."""
        return self._processes.stopping > 0

    def client(self) -> Client:
        """The management API with the admin credential, as `roost ctl` would find them."""
        return Client(Endpoint.find(directory=self.options.dir, environment={}))

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        directory = self.options.dir
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unusable(
                f"cannot make {directory}: {error.strerror}", hint="name another: --dir DIR"
            ) from error
        self._lock = Lock(
            directory / "up.lock",
            what=f"roost is already running from {directory}",
            hint="stop it first, or use another directory: --dir DIR",
        )
        self._processes.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        finally:
            for file in (self.options.dir / "up.json", self.options.ready_file):
                if file is not None:
                    file.unlink(missing_ok=True)
            self._processes.__exit__()
            if self._lock is not None:
                self._lock.release()

    def start(self) -> None:
        """Start all three, return when each answers; `Unavailable` with the reason if one won't."""
        self._start_server()
        self._hand_out_token()
        self._start_agent()
        self._start_gateway()
        self._await("agent", self._node_is_ready)
        self._await("gateway", lambda: answers(f"{self.metrics}/readyz"))
        self._started = True
        self._write_ready()

    def serve(
        self, *, until: Callable[[], bool] | None = None, timeout: float | None = None
    ) -> None:
        """Keep them running until somebody asks to stop, `until` says so, or the time is up."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.stopping and not (until is not None and until()):
            now = time.monotonic()
            if end is not None and now >= end:
                return
            moments = [*self._restart_at.values(), *([end] if end is not None else [])]
            if until is not None:
                moments.append(now + 0.2)
            for child in self._processes.wait(max(0.0, min(moments) - now) if moments else None):
                self._ended(child)
            for name in [n for n, at in self._restart_at.items() if at <= time.monotonic()]:
                self._restart(name)

    # -- the three -------------------------------------------------------------------------------

    def _start_server(self) -> None:
        self._start_listening(
            "server",
            ("api",),
            # Its own, also where ROOST_DATABASE names a fleet's.
            lambda: ["server", "--port", str(self.ports["api"]), "--database", "roost.db"],
        )

    def _start_gateway(self) -> None:
        self._start_listening(
            "gateway",
            ("gateway", "metrics"),
            lambda: [
                *("gateway", "--server", self.api, "--workers", str(self.options.workers)),
                *(
                    "--port",
                    str(self.ports["gateway"]),
                    "--metrics-port",
                    str(self.ports["metrics"]),
                ),
            ],
        )

    def _start_agent(self) -> None:
        if self.options.fake_fleet is not None:
            words = [*(sys.executable, "-m", "roost.cli.main", "fleet", "run")]
            words += [str(self.options.fake_fleet), "--server", self.api]
            words += ["--token-file", str(self._token_file)]
            words += ["--dir", str(self.options.dir / "fleet"), "--engines", self.options.engines]
            self._processes.start("agent", words, holds_sigterm=True)
            return
        words = ["agent", "--server", self.api, "--token-file", str(self._token_file)]
        for model_dir in self.options.model_dirs:
            words += ["--model-dir", str(model_dir)]
        if self.options.allow_command:
            words.append("--allow-command")
        # Ended before it is ready to, it would leave the engines that it is to stop.
        self._processes.start("agent", self._argv([*words, "--stop-engines"]), holds_sigterm=True)

    def _start_listening(
        self,
        name: str,
        doors: Sequence[str],
        words: Callable[[], list[str]],
    ) -> None:
        for door in doors:
            self.ports[door] = self._port_for(door)
        for _ in range(5):
            self._endpoint(name).unlink(missing_ok=True)
            self._processes.start(name, self._argv(words()))
            try:
                self._await(name, lambda: self._listens(name))
            except Unavailable as error:
                # Somebody took a port after our look, and may have given it back by now.
                lost = ADDRESS_IN_USE in error.message.lower()
                if self._processes.running(name) or not lost or self.options.port_base is not None:
                    raise
                for door in doors:
                    self.ports[door] = self._port_for(door)
                continue
            return
        raise Unavailable(f"no port stays free for the {name}", hint="try --port-base")

    def _endpoint(self, name: str) -> Path:
        """Written by the child once it listens: what answers on the port may be somebody else."""
        return self.options.dir / name / "endpoint.json"

    def _listens(self, name: str) -> bool:
        door = self.api if name == "server" else self.metrics
        return self._endpoint(name).exists() and answers(f"{door}/healthz")

    def _port_for(self, door: str) -> int:
        wanted = WANTED_PORTS[door]
        if self.options.port_base is not None:
            wanted += self.options.port_base - WANTED_PORTS["api"]
            if not is_free(wanted):
                raise Unusable(f"port {wanted} is taken", hint="choose another --port-base")
            return wanted
        return next_free_port(wanted, avoid=set(self.ports.values()))

    def _argv(self, words: Sequence[str]) -> list[str]:
        return [
            *(sys.executable, "-m", "roost.cli.main"),
            *(words[0], "--dir", str(self.options.dir), *words[1:]),
        ]

    # -- watching --------------------------------------------------------------------------------

    def _ended(self, child: Child) -> None:
        lived = time.monotonic() - child.started
        child.quick_ends = 0 if lived > 60 else child.quick_ends + 1
        delay = (
            0.0 if child.quick_ends <= 1 else min(_LONGEST_DELAY_S, 2.0 ** (child.quick_ends - 2))
        )
        self.say(
            f"the {child.name} ended ({_how(child.process.returncode)}); "
            f"starting it again{f' in {delay:.0f} s' if delay else ''}"
        )
        self._restart_at[child.name] = time.monotonic() + delay

    def _restart(self, name: str) -> None:
        """Whatever goes wrong here, the other parts go on, and this one is tried again."""
        del self._restart_at[name]
        try:
            self._endpoint(name).unlink(missing_ok=True)
            child = self._processes.start_again(name)
        except OSError as error:
            self.say(f"the {name} cannot be started: {error.strerror or error}; trying again")
            self._restart_at[name] = time.monotonic() + _START_AGAIN_S
            return
        try:
            if name == "server":
                self._await("server", lambda: self._listens("server"))
                # The directory may have been emptied: the agent needs a token to join anew.
                self._hand_out_token()
            self._write_ready()
        except Stopped:
            return
        except (RoostError, OSError) as error:
            said = error.message if isinstance(error, RoostError) else error.strerror or str(error)
            self.say(f"the {name} is not ready: {said}")
        if name not in self._restart_at and not self._processes.running(name):
            self._ended(child)

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        pause = 0.02
        while not ready():
            if self.stopping:
                raise Stopped
            if not self._processes.running(name):
                child = self._processes.children[name]
                raise _last_words(child)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the {name} does not answer after {_START_LIMIT_S} s",
                    hint=f"its log is {self._processes.children[name].log}",
                )
            for child in self._processes.wait(pause):
                if child.name == name:
                    continue
                if not self._started:
                    raise _last_words(child)
                self._ended(child)
            pause = min(0.2, pause * 1.5)

    def _node_is_ready(self) -> bool:
        with contextlib.suppress(Unreachable, NotFound):
            return any(node["ready"] for node in self.client().get("/api/v1/nodes")["nodes"])
        return False

    # -- what is written -------------------------------------------------------------------------

    @property
    def _token_file(self) -> Path:
        return self.options.dir / "agent" / "join-token"

    def _hand_out_token(self) -> None:
        nodes = self.options.nodes
        ttl_s = _TOKEN_TTL_S + nodes * _TOKEN_TTL_A_NODE_S
        made = self.client().post("/api/v1/tokens", {"ttl_s": ttl_s, "uses": nodes})
        self._token_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._token_file, f"{made['token']}\n".encode())

    def _write_ready(self) -> None:
        children = self._processes.children
        pids: Mapping[str, object] = {
            "up": os.getpid(),
            "server": children["server"].pid,
            "agent": children["agent"].pid,
            "gateway": [children["gateway"].pid],
        }
        text = json.dumps(
            {
                "api": self.api,
                "gateway": self.gateway,
                "metrics": [f"{self.api}/metrics", f"{self.metrics}/metrics"],
                "admin_credential_file": str(self.options.dir / "server" / "admin_credential"),
                "pids": pids,
            },
            indent=1,
        )
        for file in (self.options.dir / "up.json", self.options.ready_file):
            if file is not None:
                write_private(file, text.encode())

    # -- stopping --------------------------------------------------------------------------------

    def _stop(self) -> None:
        """The gateway first (what is in flight finishes), then the engines, then the server."""
        # Who asks a second time, whichever part is stopping then, is in a hurry from there on.
        patient = min(self._processes.stopping, 1)
        for name, limit in _STOP_LIMIT_S.items():
            if self._processes.running(name):
                self._processes.stop(name, grace_s=limit, patient=patient)
            if name == "agent" and self._left_engines():
                # Nobody else stops them.
                with contextlib.suppress(OSError):
                    self._processes.start_again("agent")
                    self._processes.stop("agent", grace_s=_SECOND_STOP_LIMIT_S, patient=patient)

    def _left_engines(self) -> bool:
        """The agent ended before it had stopped them: it was killed, or it failed."""
        child = self._processes.children.get("agent")
        return child is not None and child.process.returncode != 0


class Stopped(RoostError):
    """Somebody asked to stop while it was starting; not a failure."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("stopped")


def _how(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"signal {-returncode}"
    return f"exit status {returncode}"


def _last_words(child: Child) -> Unavailable:
    """The error a child ended with, and its hint; or the end of its log."""
    lines = child.last_lines()
    errors = [line for line in lines if line.startswith("error: ")]
    hints = [line for line in lines if line.startswith("hint: ")]
    said = errors[-1].removeprefix("error: ") if errors else "\n".join(lines) or "it said nothing"
    return Unavailable(
        f"the {child.name} ended ({_how(child.process.returncode)}): {said}",
        hint=hints[-1].removeprefix("hint: ") if hints else None,
    )
