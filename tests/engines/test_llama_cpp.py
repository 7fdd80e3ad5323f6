from dataclasses import replace
from pathlib import Path

import pytest

from roost.domain.allocation import ReplicaName
from roost.domain.gpu import GpuClass
from roost.domain.model import ModelName
from roost.domain.profile import Engine, Profile, ProfileName
from roost.domain.replica import PlacementId, ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Exit, Site
from roost.reconcile.engine_life import Health

DATA = Path(__file__).parents[1] / "data" / "engines"
LLAMA = adapter(Engine.LLAMA_CPP)
SITE = Site(program=("/usr/bin/llama-server",), source="/models/q4.gguf", threads=8)
PROFILE = Profile(name=ProfileName("cpu"), engine=Engine.LLAMA_CPP, source="q4.gguf")
SPEC = ShardSpec(
    placement=PlacementId("p1"),
    rank=0,
    replica=ReplicaName("org/coder-0"),
    model=ModelName("org/coder"),
    index=0,
    profile=PROFILE,
    host="127.0.0.1",
    port=21000,
    key="very-secret",
)


def line(spec: ShardSpec, site: Site = SITE) -> str:
    return " ".join(LLAMA.argv(spec, site))


def with_profile(**changes: object) -> ShardSpec:
    return replace(SPEC, profile=replace(PROFILE, **changes))  # type: ignore[arg-type]  # by name


def test_the_command_line_of_a_plain_profile() -> None:
    assert line(SPEC) == (
        "/usr/bin/llama-server -m /models/q4.gguf --alias org/coder --host 127.0.0.1 --port 21000 "
        "--metrics -np 4 -c 16384 -t 8 -ngl 0"
    )


def test_slots_of_the_profile_make_the_context() -> None:
    assert "-np 16 -c 65536" in line(with_profile(slots=16))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("-c", "512"), "--metrics -np 4 -t 8 -ngl 0 -c 512"),
        (
            ("--ctx-size", "512", "--parallel", "2"),
            "--metrics -t 8 -ngl 0 --ctx-size 512 --parallel 2",
        ),
        (("-np", "2"), "--metrics -c 8192 -t 8 -ngl 0 -np 2"),
        (("-np", "x"), "--metrics -c 16384 -t 8 -ngl 0 -np x"),
        (("--threads", "1", "-ngl", "5"), "--metrics -np 4 -c 16384 --threads 1 -ngl 5"),
    ],
)
def test_a_flag_that_the_profile_gives_is_not_given_twice(
    args: tuple[str, ...], expected: str
) -> None:
    assert line(with_profile(args=args)).endswith(expected)


def test_threads_are_left_to_the_engine_where_they_are_not_known() -> None:
    assert " -t " not in line(SPEC, replace(SITE, threads=None))


def test_a_profile_with_a_card_puts_all_layers_on_it_and_shows_no_other() -> None:
    spec = replace(
        with_profile(gpu_class=GpuClass("rtx-4090"), gpus_per_node=1),
        gpus=(3,),
        gpu_uuids=("GPU-3",),
    )
    assert line(spec).endswith("-ngl 999")
    assert LLAMA.env(spec, SITE)["CUDA_VISIBLE_DEVICES"] == "GPU-3"
    assert LLAMA.env(replace(spec, gpu_uuids=()), SITE)["CUDA_VISIBLE_DEVICES"] == "3"


def test_the_key_is_in_the_environment_and_nowhere_else() -> None:
    assert "very-secret" not in line(SPEC)
    assert "very-secret" not in repr(SPEC)
    env = LLAMA.env(with_profile(env={"LLAMA_API_KEY": "mine", "X": "1"}), SITE)
    assert env == {
        "LLAMA_API_KEY": "very-secret",
        "X": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize(
    ("status", "health"),
    [(200, Health.READY), (503, Health.LOADING), (404, Health.BROKEN), (500, Health.BROKEN)],
)
def test_what_the_health_answer_means(status: int, health: Health) -> None:
    assert LLAMA.health(status, b"") is health


@pytest.mark.parametrize(
    ("body", "slots"),
    [
        (b'{"total_slots":4,"model_alias":"a"}', 4),
        (b'{"total_slots":0}', None),
        (b'{"total_slots":"4"}', None),
        (b"{}", None),
        (b"[]", None),
        (b"not json", None),
    ],
)
def test_slots_are_learnt_from_props_or_not_known(body: bytes, slots: int | None) -> None:
    assert LLAMA.slots(body) == slots


# Lines as llama.cpp b10434 and xllamacpp 2026.10.11549 wrote them; the sentence is ours.
@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            (
                "0.00.004.178 E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory)\n"
                "0.00.004.269 E llama_model_load: error loading model: llama_model_loader: failed to load model from /nope.gguf\n"
                "0.00.004.683 E srv          init: exiting due to model loading error\n"
            ),
            "exit status 1: cannot open the model file /nope.gguf: no such file or directory",
        ),
        (
            (
                "0.00.003.896 E gguf_init_from_reader: invalid magic characters: '&ii?', expected 'GGUF'\n"
                "0.00.004.003 E llama_model_load: error loading model: llama_model_loader: failed to load model from /x\n"
            ),
            "exit status 1: q4.gguf is not a GGUF file (invalid magic characters)",
        ),
        (
            "0.00.003.737 E gguf_init_from_reader: failed to read magic\n",
            "exit status 1: q4.gguf is empty or a directory (failed to read magic)",
        ),
        (
            "0.00.023.322 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete\n",
            "exit status 1: q4.gguf is truncated or corrupt: tensor 'token_embd.weight' lies outside of it",
        ),
        (
            (
                "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate CPU buffer of size 4718592000\n"
                "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n"
            ),
            "exit status 1: out of memory: cannot allocate CPU buffer of size 4718592000",
        ),
        (
            "error: invalid argument: --x\n",
            "exit status 1: llama-server has no argument --x: take it out of the profile's args",
        ),
        (
            'error while handling argument "-c": stoi\n',
            'exit status 1: llama-server cannot use the argument "-c": stoi',
        ),
        (
            "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'zeta9'\n",
            "exit status 1: this build of llama.cpp does not know the architecture 'zeta9' of q4.gguf",
        ),
        (
            (
                "0.00.004.185 E gguf_init_from_reader: this GGUF file is version 99 but this software only supports up to version 3\n"
                "0.00.004.185 E gguf_init_from_reader: failed to read header\n"
            ),
            "exit status 1: q4.gguf is of GGUF version 99, and this build of llama.cpp knows up to 3",
        ),
        (
            "0.00.009.485 E gguf_init_from_reader: failed to read header\n",
            "exit status 1: q4.gguf is truncated or corrupt: failed to read header",
        ),
        (
            # Written before each end, also where nobody asked for it.
            (
                "0.00.002.586 I srv    operator(): operator(): cleaning up before exit...\n"
                "0.00.010.142 E srv          init: exiting due to model loading error\n"
            ),
            "exit status 1: init: exiting due to model loading error",
        ),
        (
            (
                "0.57.002.586 I srv    operator(): operator(): cleaning up before exit...\n"
                "Received second interrupt, terminating immediately.\n"
            ),
            "exit status 1: somebody ended it (SIGTERM or SIGINT)",
        ),
        ("something new\n\n", "exit status 1: something new"),
        ("", "exit status 1, and wrote nothing"),
    ],
)
def test_the_cause_of_an_end_is_read_from_the_log(log: str, cause: str) -> None:
    ended = LLAMA.ended(Exit(status=1, log=log), SPEC)
    assert ended.cause == cause
    assert not ended.port_taken


def test_a_port_that_cannot_be_bound_is_told_apart() -> None:
    log = "0.00.002.532 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 21000\n"
    ended = LLAMA.ended(Exit(status=1, log=log), SPEC)
    assert ended.port_taken
    assert ended.cause == "exit status 1: cannot listen on 127.0.0.1 port 21000: it is taken"


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (-4, "killed by SIGILL: this build uses instructions that this CPU does not have"),
        (-9, "killed by SIGKILL: somebody ended it, or the kernel did for want of memory"),
        (-60, "killed by signal 60"),
        (0, "ended by itself with exit status 0: all well"),
        (None, "ended, exit status not known (an earlier agent had started it): all well"),
    ],
)
def test_the_cause_of_an_end_is_read_from_the_status(status: int | None, cause: str) -> None:
    # A killed engine's log has old warnings in it that say nothing about its end.
    assert LLAMA.ended(Exit(status=status, log="all well\n"), SPEC).cause == cause


@pytest.mark.parametrize(
    ("status", "log", "cause"),
    [
        (
            -6,
            "/llama.cpp/ggml/src/ggml.c:1713: GGML_ASSERT(ctx->mem_buffer != NULL) failed\n[New LWP 7]\n",
            "killed by SIGABRT: it gave itself up: GGML_ASSERT(ctx->mem_buffer != NULL) failed",
        ),
        (
            -6,
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
            "killed by SIGABRT: it gave itself up: out of memory: std::bad_alloc",
        ),
        (-6, "all well\n", "killed by SIGABRT: it gave itself up"),
        # It went on after that, and was ended by somebody else.
        (
            -9,
            "std::bad_alloc\n",
            "killed by SIGKILL: somebody ended it, or the kernel did for want of memory",
        ),
        (
            0,
            "0.57.002.586 I srv    operator(): operator(): cleaning up before exit...\n",
            "exit status 0: somebody ended it (SIGTERM or SIGINT)",
        ),
    ],
)
def test_what_an_engine_wrote_counts_where_it_ended_itself(
    status: int, log: str, cause: str
) -> None:
    assert LLAMA.ended(Exit(status=status, log=log), SPEC).cause == cause


def test_a_cause_holds_no_key_and_no_control_characters_and_is_short() -> None:
    log = f"\x1b[31mboom very-secret {'x' * 5000}\n"
    cause = LLAMA.ended(Exit(status=2, log=log), SPEC).cause
    assert "very-secret" not in cause
    assert cause.isprintable()
    assert len(cause) < 400
