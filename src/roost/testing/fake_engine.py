"""An engine without a model: a real process that speaks the OpenAI API and fails in the ways
engines fail.

`python -m roost.testing.fake_engine --port P [knobs]`; the knobs are in `fake_knobs`. An agent can
be pointed at a script that runs it. The key comes in `LLAMA_API_KEY`, `VLLM_API_KEY`,
`ROOST_ENGINE_API_KEY` or `--api-key`.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from roost.testing.fake_http import FakeEngine
from roost.testing.fake_knobs import knobs
from roost.testing.fake_ranks import Ranks


def say(line: str) -> None:
    """To where engines write their logs."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def leave(status: int) -> None:
    """End at once, as an engine that crashes does."""
    os._exit(status)


def key_of(asked: argparse.Namespace, env: Mapping[str, str]) -> str:
    """Which key requests must carry; empty: none."""
    names = ("LLAMA_API_KEY", "VLLM_API_KEY", "ROOST_ENGINE_API_KEY")
    given: str = asked.api_key or next((env[name] for name in names if env.get(name)), "")
    return given


async def live(engine: FakeEngine) -> None:
    """All that a rank does, until it leaves."""
    asked, ranks = engine.asked, engine.ranks
    work = [_end_by_itself(asked, engine), _progress(asked, engine.say), _meet(engine)]
    if asked.node_rank == 0 and not asked.headless:
        work.append(engine.serve())
    else:
        work.append(_follow(ranks, engine))
    await asyncio.gather(*work)


async def _meet(engine: FakeEngine) -> None:
    asked = engine.asked
    try:
        await engine.ranks.meet()
    except OSError:
        engine.say(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            f"local network address. port: {asked.master_port}, useIpv6: false, code: -98, "
            "name: EADDRINUSE, message: address already in use"
        )
        engine.leave(1)


async def _end_by_itself(asked: argparse.Namespace, engine: FakeEngine) -> None:
    if asked.exit_after is None or asked.end_as_rank not in {None, asked.node_rank}:
        return
    if asked.once_file is not None:
        if asked.once_file.exists():
            return
        asked.once_file.touch()
    await asyncio.sleep(asked.exit_after)
    for line in asked.stderr:
        engine.say(line)
    engine.leave(asked.exit_code)


async def _progress(asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    while asked.load_lines is not None:
        await asyncio.sleep(asked.load_lines)
        say("loading …")


async def _follow(ranks: Ranks, engine: FakeEngine) -> None:
    """What a rank without HTTP does: wait for rank 0 to go."""
    await ranks.lost.wait()
    engine.say("rank 0 has gone")
    engine.leave(1)


def _bear_children(asked: argparse.Namespace) -> None:
    sleeper = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    pids = []
    for number in range(asked.children + asked.stray_children):
        child = subprocess.Popen(sleeper, start_new_session=number >= asked.children)
        pids.append(child.pid)
    if asked.children_file is not None:
        asked.children_file.write_text(" ".join(map(str, pids)))


async def run(asked: argparse.Namespace) -> None:
    """Serve until SIGTERM, or until a knob ends it."""
    engine = FakeEngine(
        asked=asked, ranks=Ranks.of(asked), say=say, leave=leave, key=key_of(asked, os.environ)
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, engine.sigterm)
    _bear_children(asked)
    await live(engine)


def main() -> None:
    """The process."""
    asyncio.run(run(knobs(sys.argv[1:])))


if __name__ == "__main__":
    main()
