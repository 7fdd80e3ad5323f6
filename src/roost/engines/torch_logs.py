"""What engines on PyTorch write alike when they fail."""

import re
from typing import Final

from roost.domain.replica import ShardSpec
from roost.engines.exits import Rule, describe_status

OUT_OF_MEMORY: Final = Rule(
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a …
    pattern=re.compile(r"((?:CUDA|HIP) out of memory\.(?: Tried to allocate [\d.]+ \w+)?)"),
    sentence=lambda m: f"out of GPU memory: {m[1]}",
)

LOST: Final = (
    # RuntimeError: [/…/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2467.
    r"/gloo/\S+ Connection (?:closed|reset) by peer"
    # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html
    r"|ncclRemoteError: |remote process exited or there was a network error"
    # [rank1]:[W811 …] [c10d] recvValue failed on SocketImpl(fd=9, …): Failed to recv, got 0 bytes.
    # Connection was likely closed. Did the remote server shutdown or crash?
    r"|[Ff]ailed to recv, got 0 bytes"
    r"|(?:recv|send)\w+ failed on SocketImpl\(.*\): (?:Connection reset by peer|Broken pipe)"
)
"""What a rank writes that is well itself; to be looked for when nothing else tells."""

_CHILD: Final = (
    # vLLM: Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.
    r"(?:Worker proc|Subprocess) (?P<child>\S+) (?:died unexpectedly|\(pid=\d+\) crashed)"
    # SGLang: Subprocess scheduler_0 (pid=7391) crashed with exit code -11. Triggering SIGQUIT …
    r"(?:.*exit code:? (?P<code>-?\d+))?"
)


def another_gone(spec: ShardSpec) -> Rule:
    """A process of its own or another rank, whichever is spoken of first; nothing says why."""

    def sentence(found: re.Match[str]) -> str:
        if (child := found["child"]) is None:
            lost = "another rank of its replica" if spec.peers else "one of its own processes"
            return f"lost {lost}: that one's process ended, or the network between them broke"
        if (code := found["code"]) is None:
            return f"its process {child} died, and nothing says why"
        return f"its process {child}: {describe_status(int(code))}"

    return Rule(pattern=re.compile(rf"{LOST}|{_CHILD}"), sentence=sentence)


def damaged(model: str) -> Rule:
    """A file of weights was cut short by a copy or a download."""
    return Rule(
        # safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata,
        # file not fully covered
        pattern=re.compile(r"SafetensorError: (?:Error while deserializing header: )?(.+)"),
        sentence=lambda m: f"a file of {model} is damaged: {m[1]}",
    )


def no_tokenizer(model: str) -> Rule:
    """Weights without the files that belong to them."""
    return Rule(
        # ValueError: Couldn't instantiate the backend tokenizer from one of:
        pattern=re.compile(r"Couldn't instantiate the backend tokenizer from one of"),
        sentence=lambda _: f"{model} has no tokenizer that can be loaded",
    )


def no_such_flag(program: str) -> Rule:
    """Python's argparse, exit status 2."""
    return Rule(
        pattern=re.compile(r"error: unrecognized arguments: (.+)"),
        sentence=lambda m: f"{program} has no argument {m[1]}: take it out of the profile's args",
    )


def port_taken(spec: ShardSpec) -> Rule:
    """Uvicorn's own port is somebody else's."""
    return Rule(
        # OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 18110)
        pattern=re.compile(rf"\[Errno 98\].*(?<!\d){spec.port}(?!\d)|\[Errno 98\] Address"),
        sentence=lambda _: f"cannot listen on {spec.host} port {spec.port}: it is taken",
        port_taken=True,
    )


def meeting_failed(spec: ShardSpec) -> Rule:
    """The port where the ranks of one replica meet is somebody else's."""
    port = spec.group_port
    return Rule(
        # torch.distributed.DistNetworkError: The server socket has failed to listen on any local
        # network address. port: 29555, useIpv6: false, code: -98, name: EADDRINUSE, …
        pattern=re.compile(
            rf"port: {port},.*EADDRINUSE|EADDRINUSE.*(?<!\d){port}(?!\d)"
            # SGLang, which waits 30 s for it: dist_init_port at 25000 is not available in …
            rf"|\w+ at {port} is not available"
            if port is not None
            else r"(?!)"
        ),
        sentence=lambda _: f"the ranks cannot meet at port {port}: it is taken",
        port_taken=True,
    )
