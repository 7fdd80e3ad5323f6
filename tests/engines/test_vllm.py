from dataclasses import replace
from pathlib import Path

import pytest

from engines.specs import KEY, group, spec
from roost.agent.supervise.probe import parse_load
from roost.domain.gpu import GpuClass
from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import Load, ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Exit, Site
from roost.errors import Unavailable
from roost.reconcile.engine_life import Health

DATA = Path(__file__).parents[1] / "data" / "engines"
VLLM = adapter(Engine.VLLM)
SITE = Site(program=("/opt/vllm",), source="/models/coder", threads=8, interface="eth0")

# Captured, like the lines below, from vLLM 0.32.0 with a model that was spoilt on purpose.
STARTUP_FAILED = (
    "(EngineCore pid=3091) ERROR 12-07 11:30:26 [core.py:1510] EngineCore failed to start.\n"
    "(EngineCore pid=3091) ERROR 12-07 11:30:26 [core.py:1510] Exception: WorkerProc initialization "
    "failed due to an exception in a background process. See stack trace for root cause.\n"
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)
# Rank 0 of two, when all of rank 1 was killed and a request came.
RANK_LOST = (
    "(Worker_TP0 pid=6349) ERROR 12-07 11:36:06 [multiproc_executor.py:1063] RuntimeError: "
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
    "peer [127.0.0.1]:2467. This is typically caused by a remote worker crashing.\n"
    "(EngineCore pid=6062) ERROR 12-07 11:36:06 [core.py:1512] RuntimeError: Worker failed with "
    "error '[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
    "closed by peer [127.0.0.1]:2467.\n"
    "(APIServer pid=5883) ERROR 12-07 11:36:06 [async_llm.py:906] vllm.v1.engine.exceptions."
    "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)
LOST = (
    "lost another rank of its replica: that one's process ended, or the network between them broke"
)


# One of the workers of a single node was killed, and a request came.
WORKER_DIED = (
    "(EngineCore pid=29193) ERROR 12-07 12:15:37 [multiproc_executor.py:315] Worker proc VllmWorker-1 "
    "died unexpectedly (exit code: None), shutting down executor.\n"
    "(EngineCore pid=29193) ERROR 12-07 12:15:40 [core.py:1512] RuntimeError: Executor failed.\n"
    "(APIServer pid=29162) ERROR 12-07 12:15:40 [async_llm.py:906] vllm.v1.engine.exceptions."
    "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
    "RuntimeError: Executor failed.\n"
)
DIED = "its process VllmWorker-1 died, and nothing says why"


def line(of: ShardSpec) -> str:
    return " ".join(VLLM.argv(of, SITE))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (
            spec(Engine.VLLM),
            (
                "/opt/vllm serve /models/coder --served-model-name coder --tensor-parallel-size 1 "
                "--pipeline-parallel-size 1 --host 10.0.0.1 --port 21000"
            ),
        ),
        (
            spec(Engine.VLLM, cards=4, slots=64, args=("--max-model-len", "8192")),
            (
                "/opt/vllm serve /models/coder --served-model-name coder --tensor-parallel-size 4 "
                "--pipeline-parallel-size 1 --host 10.0.0.1 --port 21000 --max-num-seqs 64 "
                "--max-model-len 8192"
            ),
        ),
        (
            spec(Engine.VLLM, slots=64, args=("--max_num_seqs=8",)),
            (
                "/opt/vllm serve /models/coder --served-model-name coder --tensor-parallel-size 1 "
                "--pipeline-parallel-size 1 --host 10.0.0.1 --port 21000 --max_num_seqs=8"
            ),
        ),
        (
            group(Engine.VLLM, rank=0, tensor=16, pipeline=1),
            (
                "/opt/vllm serve /models/coder --served-model-name coder --tensor-parallel-size 16 "
                "--pipeline-parallel-size 1 --distributed-executor-backend mp --nnodes 2 "
                "--node-rank 0 --master-addr 10.0.0.1 --master-port 21050 "
                "--host 10.0.0.1 --port 21000"
            ),
        ),
        (
            group(Engine.VLLM, rank=1, tensor=8, pipeline=2),
            (
                "/opt/vllm serve /models/coder --served-model-name coder --tensor-parallel-size 8 "
                "--pipeline-parallel-size 2 --distributed-executor-backend mp --nnodes 2 "
                "--node-rank 1 --master-addr 10.0.0.1 --master-port 21050 --headless"
            ),
        ),
    ],
)
def test_the_command_line_of_every_shard(of: ShardSpec, expected: str) -> None:
    assert line(of) == expected
    assert KEY not in line(of)


def test_a_group_without_its_others_is_refused_and_says_why() -> None:
    alone = replace(group(Engine.VLLM, rank=1, tensor=16, pipeline=1), peers=())
    with pytest.raises(Unavailable, match="does not say where the others are"):
        VLLM.argv(alone, SITE)


def test_the_environment_has_the_key_the_cards_by_uuid_and_nothing_to_tell_its_makers() -> None:
    assert VLLM.env(spec(Engine.VLLM, cards=2, env={"X": "1", "VLLM_API_KEY": "mine"}), SITE) == {
        "VLLM_NO_USAGE_STATS": "1",
        "X": "1",
        "VLLM_API_KEY": KEY,
        "VLLM_HOST_IP": "10.0.0.1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
    }


def test_a_rank_of_a_group_is_told_its_adapters_its_interface_and_its_own_address() -> None:
    env = VLLM.env(group(Engine.VLLM, rank=1, tensor=16, pipeline=1), SITE)
    assert env["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert env["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert env["VLLM_HOST_IP"] == "10.0.0.2"
    unknown = VLLM.env(
        group(Engine.VLLM, rank=1, tensor=16, pipeline=1), replace(SITE, interface=None)
    )
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & unknown.keys()


@pytest.mark.parametrize("product", ["mi300x", "rx-7900-xtx", "radeon-pro-w7900"])
def test_amds_cards_are_shown_by_number(product: str) -> None:
    env = VLLM.env(spec(Engine.VLLM, cards=2, gpu_class=GpuClass(product)), SITE)
    assert env["HIP_VISIBLE_DEVICES"] == env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_DEVICE_ORDER" not in env


def test_only_rank_0_is_asked_how_it_is_and_how_busy() -> None:
    first, second = (group(Engine.VLLM, rank=rank, tensor=16, pipeline=1) for rank in (0, 1))
    assert VLLM.health_path(first) == "/health"
    assert VLLM.health_path(second) is None
    assert VLLM.metrics(first) is not None
    assert VLLM.metrics(second) is None


@pytest.mark.parametrize(("status", "health"), [(200, Health.READY), (503, Health.BROKEN)])
def test_what_an_answer_of_its_health_page_means(status: int, health: Health) -> None:
    assert VLLM.health(status, b"") is health


@pytest.mark.parametrize(
    ("page", "load"),
    [
        ("vllm-0.32.0-metrics-idle-part.txt", Load(running=0, waiting=0, kv_usage=0)),
        ("vllm-0.32.0-metrics-load-part.txt", Load(running=4, waiting=4, kv_usage=None)),
    ],
)
def test_its_load_is_read_off_a_captured_page(page: str, load: Load) -> None:
    names = VLLM.metrics(spec(Engine.VLLM))
    assert names is not None
    found = parse_load((DATA / page).read_text(), names)
    assert found is not None
    assert (found.running, found.waiting) == (load.running, load.waiting)
    assert found.kv_usage is not None
    assert 0 <= found.kv_usage <= 1


def test_an_older_versions_kv_gauge_is_read_too_and_several_engines_are_summed() -> None:
    names = VLLM.metrics(spec(Engine.VLLM)) or MetricNames()
    page = (
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
        'vllm:num_requests_waiting{engine="0"} 1\n'
        'vllm:gpu_cache_usage_perc{engine="0"} 0.25\nvllm:gpu_cache_usage_perc{engine="1"} 0.5\n'
    )
    assert parse_load(page, names) == Load(running=5, waiting=1, kv_usage=0.5)


@pytest.mark.parametrize(
    ("status", "log", "cause", "port_taken"),
    [
        (
            1,
            (
                "(APIServer pid=7) INFO 10-11 12:00:00 [api_server.py:1] starting\n"
                "OSError: [Errno 98] error while attempting to bind on address ('10.0.0.1', 21000): "
                "address already in use\n"
            ),
            "exit status 1: cannot listen on 10.0.0.1 port 21000: it is taken",
            True,
        ),
        (
            1,
            (
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
                "local network address. port: 21050, useIpv6: false, code: -98, name: EADDRINUSE, "
                "message: address already in use\nRuntimeError: Engine core initialization failed.\n"
            ),
            "exit status 1: the ranks cannot meet at port 21050: it is taken",
            True,
        ),
        (
            1,
            (
                "(EngineCore pid=9) ERROR 10-11 12:00:00 [core.py:778] ValueError: Free memory on "
                "device cuda:0 (3.5/79.1 GiB) on startup is less than desired GPU memory utilization "
                "(0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
                "processes.\nRuntimeError: Engine core initialization failed. See root cause above.\n"
            ),
            (
                "exit status 1: out of GPU memory: Free memory on device cuda:0 (3.5/79.1 GiB) on "
                "startup is less than desired GPU memory utilization (0.9, 71.2 GiB)"
            ),
            False,
        ),
        (
            1,
            (
                "ValueError: To serve at least one request with the model's max seq len (131072), "
                "(16.00 GiB KV cache is needed, which is larger than the available KV cache memory "
                "(9.50 GiB). Try increasing\n"
            ),
            (
                "exit status 1: out of GPU memory: a context of 131072 tokens needs 16.00 GiB of KV "
                "cache, and 9.50 GiB are left; set --max-model-len in args"
            ),
            False,
        ),
        (
            1,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a\n",
            "exit status 1: out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB",
            False,
        ),
        (
            1,
            (
                "ValueError: Available memory on node 0 (1.2/23.5 GiB) on startup is less than "
                "requested memory for kv (40.0 GiB).\nRuntimeError: Engine core initialization "
                "failed. See root cause above. Failed core proc(s): {'EngineCore': 1}\n"
            ),
            (
                "exit status 1: out of memory: Available memory on node 0 (1.2/23.5 GiB) on startup "
                "is less than requested memory for kv (40.0 GiB)."
            ),
            False,
        ),
        (
            1,
            (
                "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
                "'namespace/repo_name': '/models/nope'.\n"
            ),
            "exit status 1: org/coder is no model that vLLM can load",
            False,
        ),
        (
            1,
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                "  Value error, Invalid repository ID or local directory specified: '/models/x'.\n"
                "    For further information visit https://errors.pydantic.dev/2.14/v/value_error\n"
            ),
            "exit status 1: org/coder is no model that vLLM can load",
            False,
        ),
        (
            1,
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                "  Value error, User-specified max_model_len (4096) is greater than 2048.\n"
                "    For further information visit https://errors.pydantic.dev/2.14/v/value_error\n"
            ),
            "exit status 1: User-specified max_model_len (4096) is greater than 2048.",
            False,
        ),
        (
            1,
            "ValueError: invalid literal for int() with base 10: 'GPU-52a3a85d-3c55-ca3a'\n",
            (
                "exit status 1: this version of vLLM takes no cards by uuid: install a newer one "
                "(0.32 does)"
            ),
            False,
        ),
        (
            2,
            "usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --nope 3\n",
            "exit status 2: vllm has no argument --nope 3: take it out of the profile's args",
            False,
        ),
        (
            1,
            "RuntimeError: No CUDA GPUs are available\n",
            "exit status 1: vLLM sees no GPU: its driver or its build does not fit this node",
            False,
        ),
        (
            1,
            f"ValueError: something with {KEY} in it\nRuntimeError: Engine core init failed\n",
            "exit status 1: ValueError: something with *** in it",
            False,
        ),
        (
            0,
            (
                "(Worker pid=7) ERROR 12-01 04:18:03 [multiproc_executor.py:1063] "
                "RuntimeError: head size 32 is not supported\n"
                "nanobind: leaked 2 instances!\n"
            ),
            "ended by itself with exit status 0: RuntimeError: head size 32 is not supported",
            False,
        ),
        (
            1,
            (
                "  Value error, User-specified max_model_len (100000) is greater than the derived "
                "max_model_len (max_position_embeddings=2048.0 or model_max_length=None in model's "
                "config.json). To allow overriding this maximum, set the env var "
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.\n"
            ),
            (
                "exit status 1: a context of 100000 tokens is more than the model's 2048: lower "
                "--max-model-len in args"
            ),
            False,
        ),
        (
            1,
            (
                "  Value error, Model architectures ['HypotheticalForCausalLM'] are not supported "
                "for now. Supported architectures: dict_keys(['AfmoeForCausalLM'])\n"
            ),
            (
                "exit status 1: this version of vLLM does not know the architecture "
                "['HypotheticalForCausalLM']"
            ),
            False,
        ),
        (
            1,
            (
                "(Worker pid=3123) ERROR 12-07 11:30:22 [multiproc_executor.py:953] safetensors."
                "_safetensors_rust.SafetensorError: Error while deserializing header: incomplete "
                "metadata, file not fully covered\n" + STARTUP_FAILED
            ),
            "exit status 1: a file of org/coder is damaged: incomplete metadata, file not fully covered",
            False,
        ),
        (
            1,
            (
                "(Worker pid=2786) ERROR 12-07 11:29:50 [multiproc_executor.py:953] RuntimeError: "
                "Cannot find any model weights with `/models/coder`\n" + STARTUP_FAILED
            ),
            "exit status 1: RuntimeError: Cannot find any model weights with `/models/coder`",
            False,
        ),
        (
            1,
            (
                "ValueError: Couldn't instantiate the backend tokenizer from one of: \n"
                "(1) a `tokenizers` library serialization file, \n"
            ),
            "exit status 1: org/coder has no tokenizer that can be loaded",
            False,
        ),
        (
            1,
            (
                "(Worker pid=3) ERROR 12-07 11:29:50 [multiproc_executor.py:953] KeyError: "
                "'layers.0.mlp.gate.weight'\n" + STARTUP_FAILED
            ),
            "exit status 1: KeyError: 'layers.0.mlp.gate.weight'",
            False,
        ),
        (
            1,
            STARTUP_FAILED,
            (
                "exit status 1: RuntimeError: Engine core initialization failed. See root cause "
                "above. Failed core proc(s): {}"
            ),
            False,
        ),
        (0, RANK_LOST, f"ended by itself with exit status 0: {LOST}", False),
        (
            1,
            (
                "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/"
                "c10d/NCCLUtils.cpp:77, remote process exited or there was a network error, NCCL "
                "version 2.26.2\nncclRemoteError: A call failed possibly due to a network error or a "
                "remote process exiting prematurely.\n"
            ),
            f"exit status 1: {LOST}",
            False,
        ),
        (
            1,
            f"{RANK_LOST}(Worker pid=9) ERROR 12-07 11:29:50 [x.py:1] IndexError: its own\n",
            "exit status 1: IndexError: its own",
            False,
        ),
        # Rank 1 of two, as rank 0's machine went while it worked.
        (
            1,
            (
                "[rank1]:[W1207 12:00:00.4 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl("
                "fd=99, addr=[::ffff:10.0.0.2]:38760, remote=[::ffff:10.0.0.1]:42643): Failed to recv, "
                "got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n"
                "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was "
                "likely closed. Did the remote server shutdown or crash?\n"
            ),
            f"exit status 1: {LOST}",
            False,
        ),
        # Whoever is spoken of first went first.
        (1, WORKER_DIED + RANK_LOST, f"exit status 1: {DIED}", False),
        (1, RANK_LOST + WORKER_DIED, f"exit status 1: {LOST}", False),
        (-9, "RuntimeError: CUDA out of memory.\n", "killed by SIGKILL: ", False),
    ],
)
def test_the_cause_is_the_telling_line_not_the_last(
    status: int, log: str, cause: str, port_taken: bool
) -> None:
    ended = VLLM.ended(
        Exit(status=status, log=log), group(Engine.VLLM, rank=0, tensor=16, pipeline=1)
    )
    assert ended.cause == cause or (cause.endswith(": ") and ended.cause.startswith(cause))
    assert ended.port_taken is port_taken


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (WORKER_DIED, DIED),
        (
            WORKER_DIED.replace("exit code: None", "exit code: -9"),
            (
                "its process VllmWorker-1: killed by SIGKILL: somebody ended it, or the kernel did "
                "for want of memory"
            ),
        ),
        (
            RANK_LOST,
            (
                "lost one of its own processes: that one's process ended, or the network between "
                "them broke"
            ),
        ),
        (f"ValueError: its own\n{WORKER_DIED}", "ValueError: its own"),
    ],
)
def test_an_engine_on_one_node_has_lost_no_rank_but_a_process_of_its_own(
    log: str, cause: str
) -> None:
    ended = VLLM.ended(Exit(status=0, log=log), spec(Engine.VLLM, cards=2))
    assert ended.cause == f"ended by itself with exit status 0: {cause}"
