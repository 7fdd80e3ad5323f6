"""What engines on PyTorch write alike when they fail."""

import re
from typing import Final

from roost.domain.replica import ShardSpec
from roost.engines.exits import Rule

OUT_OF_MEMORY: Final = Rule(
    # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a …
    pattern=re.compile(r"((?:CUDA|HIP) out of memory\.(?: Tried to allocate [\d.]+ \w+)?)"),
    sentence=lambda m: f"out of GPU memory: {m[1]}",
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
