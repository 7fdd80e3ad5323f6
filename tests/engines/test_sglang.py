import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engines.specs import KEY, group, spec
from roost.agent.supervise.probe import parse_load
from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import Load, ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Exit, Site
from roost.engines.sglang import LAUNCH
from roost.errors import Unavailable
from roost.reconcile.engine_life import Health

SGLANG = adapter(Engine.SGLANG)
SITE = Site(program=("/opt/python",), source="/models/coder", interface="ib0")


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (
            spec(Engine.SGLANG, cards=2, slots=32, args=("--trust-remote-code",)),
            (
                "--model-path /models/coder --served-model-name coder --host 10.0.0.1 --port 21000 "
                "--enable-metrics --tp-size 2 --pp-size 1 --max-running-requests 32 "
                "--trust-remote-code"
            ),
        ),
        (
            group(Engine.SGLANG, rank=0, tensor=16, pipeline=1),
            (
                "--model-path /models/coder --served-model-name coder --host 10.0.0.1 --port 21000 "
                "--enable-metrics --tp-size 16 --pp-size 1 --nnodes 2 --node-rank 0 "
                "--dist-init-addr 10.0.0.1:21050"
            ),
        ),
        (
            group(Engine.SGLANG, rank=1, tensor=8, pipeline=2),
            (
                "--model-path /models/coder --served-model-name coder --host 10.0.0.2 --port 21001 "
                "--enable-metrics --tp-size 8 --pp-size 2 --nnodes 2 --node-rank 1 "
                "--dist-init-addr 10.0.0.1:21050"
            ),
        ),
        (
            replace(
                group(Engine.SGLANG, rank=1, tensor=16, pipeline=1), peers=("fd00::1", "fd00::2")
            ),
            (
                "--model-path /models/coder --served-model-name coder --host 10.0.0.2 --port 21001 "
                "--enable-metrics --tp-size 16 --pp-size 1 --nnodes 2 --node-rank 1 "
                "--dist-init-addr [fd00::1]:21050"
            ),
        ),
    ],
)
def test_the_command_line_of_every_shard(of: ShardSpec, expected: str) -> None:
    argv = SGLANG.argv(of, SITE)
    assert argv[:3] == ("/opt/python", "-c", LAUNCH)
    assert " ".join(argv[3:]) == expected
    assert KEY not in " ".join(argv)


def test_the_key_is_added_inside_the_process(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    with open('/proc/self/cmdline') as file: print(file.read().count('very-secret'))\n"
        "    print(sys.argv[1:])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", LAUNCH, "--port", "21000"],
        env={"PYTHONPATH": str(tmp_path), "ROOST_ENGINE_API_KEY": KEY},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == ["0", f"['--api-key', '{KEY}', '--port', '21000']"]


def test_a_group_without_its_others_is_refused_and_says_why() -> None:
    alone = replace(group(Engine.SGLANG, rank=1, tensor=16, pipeline=1), group_port=None)
    with pytest.raises(Unavailable, match="does not say where the others are"):
        SGLANG.argv(alone, SITE)


def test_the_environment_of_a_rank() -> None:
    of = group(Engine.SGLANG, rank=1, tensor=16, pipeline=1)
    assert SGLANG.env(of, SITE) == {
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "NCCL_SOCKET_IFNAME": "=ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
        "ROOST_ENGINE_API_KEY": KEY,
        "SGLANG_HOST_IP": "10.0.0.2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{number}" for number in range(8)),
    }


def test_a_profile_may_name_another_interface() -> None:
    of = group(Engine.SGLANG, rank=0, tensor=16, pipeline=1)
    profile = replace(of.profile, env={"NCCL_SOCKET_IFNAME": "bond0"})
    assert SGLANG.env(replace(of, profile=profile), SITE)["NCCL_SOCKET_IFNAME"] == "bond0"


def test_only_rank_0_is_asked() -> None:
    assert SGLANG.health_path(spec(Engine.SGLANG)) == "/health"
    second = group(Engine.SGLANG, rank=1, tensor=16, pipeline=1)
    assert SGLANG.health_path(second) is None
    assert SGLANG.metrics(second) is None


@pytest.mark.parametrize(
    ("status", "health"),
    [(200, Health.READY), (503, Health.LOADING), (404, Health.BROKEN)],
)
def test_what_an_answer_of_its_health_page_means(status: int, health: Health) -> None:
    assert SGLANG.health(status, b"") is health


def test_its_load_is_summed_over_ranks_and_the_fullest_counts() -> None:
    names = SGLANG.metrics(spec(Engine.SGLANG)) or MetricNames()
    page = (
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 2.0\n'
        'sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 3.0\n'
        'sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 1.0\n'
        'sglang:token_usage{dp_rank="0",tp_rank="0"} 0.25\n'
        'sglang:token_usage{dp_rank="1",tp_rank="0"} 0.75\n'
    )
    assert parse_load(page, names) == Load(running=5, waiting=1, kv_usage=0.75)


@pytest.mark.parametrize(
    ("log", "cause", "port_taken"),
    [
        (
            (
                "[2026-10-11 12:00:00 TP0] RuntimeError: Not enough memory. Please try to increase "
                "--mem-fraction-static.\n[2026-10-11 12:00:01] Received sigquit from a child process\n"
            ),
            (
                "out of GPU memory: the model leaves none for the KV cache; raise "
                "--mem-fraction-static in args, or use larger or more cards"
            ),
            False,
        ),
        (
            (
                "ValueError: dist_init_port at 21050 is not available in 30 seconds. dist_init_port "
                "at 21050 is not available\n"
            ),
            "the ranks cannot meet at port 21050: it is taken",
            True,
        ),
        (
            (
                "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: "
                "incomplete metadata, file not fully covered\n"
            ),
            "a file of org/coder is damaged: incomplete metadata, file not fully covered",
            False,
        ),
        (
            "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:2467.\n",
            (
                "lost another rank of its replica: that one's process ended, or the network between "
                "them broke"
            ),
            False,
        ),
        (
            (
                "ERROR:    [Errno 98] error while attempting to bind on address ('10.0.0.1', 21000): "
                "address already in use\n"
            ),
            "cannot listen on 10.0.0.1 port 21000: it is taken",
            True,
        ),
        (
            "launch_server.py: error: unrecognized arguments: --nope\n",
            "sglang has no argument --nope: take it out of the profile's args",
            False,
        ),
        (
            (
                "[2026-10-11 12:00:00] server_args=ServerArgs(api_key='very-secret')\n"
                "OSError: org/coder is not a local folder and is not a valid model identifier\n"
            ),
            "org/coder is no model that SGLang can load",
            False,
        ),
    ],
)
def test_the_cause_is_the_telling_line(log: str, cause: str, port_taken: bool) -> None:
    of = group(Engine.SGLANG, rank=0, tensor=16, pipeline=1)
    ended = SGLANG.ended(Exit(status=1, log=log), of)
    assert (ended.cause, ended.port_taken) == (f"exit status 1: {cause}", port_taken)


FAILED = "[2026-10-11 12:00:01] Received sigquit from a child process. It usually means the child failed.\n"
CRASHED = (
    "[2026-10-11 12:00:00] Subprocess scheduler_0 (pid=7391) crashed with exit code -11. Triggering "
    "SIGQUIT for cleanup...\n"
    "[2026-10-11 12:00:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
)
PEER = "[2026-10-11 12:00:00 TP9] RuntimeError: NCCL error: remote process exited or there was a network error\n"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            f"[2026-10-11 12:00:00 TP0] AssertionError: fp8 is not supported\n{FAILED}",
            "ended itself by SIGKILL: AssertionError: fp8 is not supported",
        ),
        (
            CRASHED,
            "ended itself by SIGKILL: its process scheduler_0: killed by SIGSEGV: it crashed",
        ),
        (
            PEER + FAILED,
            (
                "ended itself by SIGKILL: lost another rank of its replica: that one's process "
                "ended, or the network between them broke"
            ),
        ),
        (
            f"{PEER}RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n{FAILED}",
            (
                "ended itself by SIGKILL: out of GPU memory: CUDA out of memory. Tried to allocate "
                "2.00 GiB"
            ),
        ),
        (FAILED, f"ended itself by SIGKILL: {FAILED[22:].strip()}"),
        # Somebody else did it, whatever it had complained of before.
        (
            "[2026-10-11 12:00:00 TP0] AssertionError: in a request\n",
            "killed by SIGKILL: somebody ended it, or the kernel did for want of memory",
        ),
    ],
)
def test_it_kills_itself_when_a_scheduler_fails_and_its_log_says_why(log: str, cause: str) -> None:
    of = group(Engine.SGLANG, rank=0, tensor=16, pipeline=1)
    assert SGLANG.ended(Exit(status=-9, log=log), of).cause == cause
