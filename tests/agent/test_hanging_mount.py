"""An agent whose model directory is on a file server that is away goes on reporting in time."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.node import Node
from agent.wire_server import WireServer

Story = Callable[[WireServer, Node], Awaitable[None]]

# Mounts, and runs an agent that sees the mount; ends it when standard input ends.
BESIDE_A_DEAD_MOUNT = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from agent.facts.hanging_mount import HangingMount, own_namespace
own_namespace()
mount = HangingMount(Path(sys.argv[2]))
mount.answering.clear()
agent = subprocess.Popen(sys.argv[3:])
try:
    sys.stdin.read()
    agent.terminate()
    sys.exit(agent.wait(30))
finally:
    agent.kill()
    mount.close()
"""


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs /dev/fuse")
def test_a_dead_mount_stops_no_report(tell: Callable[[Story], None], tmp_path: Path) -> None:
    point = tmp_path / "filer"
    point.mkdir()
    (tmp_path / "local").mkdir()

    async def story(server: WireServer, node: Node) -> None:
        agent = "from roost.run.agent import agent; agent()"
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                BESIDE_A_DEAD_MOUNT,
                str(Path(__file__).parents[1]),
                str(point),
            ),
            *(sys.executable, "-c", agent, "--dir", str(node.directory), "--server", server.url),
            *("--join", "token-1", "--name", "node-a"),
            *("--model-dir", str(point), "--model-dir", str(tmp_path / "local")),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        try:
            async with asyncio.timeout(60):
                # Whichever comes first: six reports, or an agent that could not start.
                while len(server.reports) < 6 and process.returncode is None:  # noqa: ASYNC110 - two things
                    await asyncio.sleep(0.05)
            process.stdin.close()
            _, said = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if b"Operation not permitted" in said:
            pytest.skip("mounting a FUSE filesystem is not allowed here")
        # SIGTERM ends the agent although its probe still waits.
        assert process.returncode == 0, said.decode()
        report = server.reports[-1]
        assert report.facts.memory_bytes
        assert report.facts.storage is not None
        shared = [one for one in report.facts.storage if one.shared]
        assert [(one.filesystem, one.free_bytes) for one in shared] == [("filer:/models", None)]
        assert any(one.free_bytes for one in report.facts.storage if not one.shared)
        assert any("filer:/models" in problem for problem in report.problems)

    tell(story)
