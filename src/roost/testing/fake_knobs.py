"""Which knobs a fake engine has: its own, and those of the engines it stands for.

It takes the command lines of `llama-server`, `vllm serve` and `python -m sglang.launch_server`, and
speaks as that engine does.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from roost.testing.fake_dialects import DIALECTS, STATUSES

PROGRAM: Final = (sys.executable, "-m", "roost.testing.fake_engine")
"""How a fake engine is started as a process."""

_SGLANG: Final = "sglang.launch_server"


def knobs(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; what isn't known is some engine's own flag and does nothing here."""
    parser = argparse.ArgumentParser(prog="fake_engine", allow_abbrev=False, add_help=True)
    parser.add_argument("-m", "--model", "--model-path")
    parser.add_argument("-a", "--alias", "--served-model-name", default="fake")
    parser.add_argument("--dialect", choices=DIALECTS, help="default: by the command line")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        *("-np", "--slots", "--parallel", "--max-num-seqs", "--max-running-requests"),
        dest="slots",
        type=int,
        default=4,
        help="requests at once",
    )
    parser.add_argument("--queue", type=int, help="that wait; one more gets 503. Default: all")
    parser.add_argument("--context", type=int, help="words of a prompt that fit. Default: all")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings too")
    parser.add_argument("--nnodes", type=int, default=1, help="ranks; only 0 serves HTTP")
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--master-addr", default="127.0.0.1", help="where the ranks meet")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--dist-init-addr", metavar="HOST:PORT", help="the same, to SGLang")
    parser.add_argument("--answer-status", type=int, choices=STATUSES, help="to every POST")
    parser.add_argument("--answer-times", type=int, help="only to so many of them")
    parser.add_argument("--cut-after", type=int, metavar="TOKENS", help="ends every stream there")
    parser.add_argument("--end-as-rank", type=int, help="--exit-after is for this rank alone")
    parser.add_argument(
        "--loss-s", type=float, default=7.0, help="from a request after a rank's loss to the end"
    )
    parser.add_argument("--port-file", type=Path, help="gets the port once it listens")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer without max_tokens")
    parser.add_argument("--tokens-per-s", type=float, default=200.0)
    parser.add_argument("--load-s", type=float, default=0.0, help="seconds until it is ready")
    parser.add_argument("--refuse-while-loading", action="store_true", help="not 503: no listener")
    parser.add_argument("--load-lines", type=float, help="a line of progress each so many seconds")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--children", type=int, default=0, help="that outlive it, in its group")
    parser.add_argument("--stray-children", type=int, default=0, help="in sessions of their own")
    parser.add_argument("--children-file", type=Path, help="gets the children's process ids")
    parser.add_argument("--exit-after", type=float, help="seconds after which it ends by itself")
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--once-file", type=Path, help="ends by itself only if this isn't there")
    parser.add_argument("--stderr", action="append", default=[], help="a line written at the end")
    parser.add_argument("--hang-health-after", type=float, help="seconds; requests hang too")
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--metrics-file", type=Path, help="is the page; 500 while there is none")
    asked, others = parser.parse_known_args(argv)
    asked.dialect = asked.dialect or _dialect(asked, others)
    if asked.dist_init_addr is not None:
        asked.master_addr, _, port = asked.dist_init_addr.rpartition(":")
        asked.master_port = int(port)
    return asked


def _dialect(asked: argparse.Namespace, others: Sequence[str]) -> str:
    if others[:1] == ["serve"]:
        return "vllm"
    # Roost starts it by a word of Python that names the module.
    by_sglang = any(_SGLANG in word for word in (asked.model or "", *others))
    by_sglang = by_sglang or asked.dist_init_addr is not None
    return "sglang" if by_sglang else "llama.cpp"
