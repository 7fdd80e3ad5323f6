"""The real vLLM on a CPU, where there is one, and a tiny model of random weights for it."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from running import MODEL_FILE, model_dir

ARGS: Final = '["--dtype", "bfloat16", "--max-model-len", "16384", "--enforce-eager"]'
ENV: Final = '{HF_HUB_OFFLINE: "1", VLLM_CPU_KVCACHE_SPACE: "1", OMP_NUM_THREADS: "1"}'

TINY = """
import os, sys
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
gguf, made = sys.argv[1:]
torch.manual_seed(0)
words = AutoTokenizer.from_pretrained(os.path.dirname(gguf), gguf_file=os.path.basename(gguf))
shape = LlamaConfig(
    vocab_size=len(words), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16384,
    bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id,
)
LlamaForCausalLM(shape).save_pretrained(made)
words.save_pretrained(made)
"""


def directory() -> Path:
    """Its `bin`; where there is none, the test is skipped and says so."""
    named = os.environ.get("ROOST_TEST_VLLM")
    if not named:
        pytest.skip("no vLLM: ROOST_TEST_VLLM is the bin directory of an environment that has it")
    return Path(named).absolute()


def give_way(bin_: Path, made: Path) -> Path:
    """A `vllm` in that directory, which leaves the processor to Roost's own processes first."""
    made.mkdir()
    program = made / "vllm"
    program.write_text(f'#!/bin/sh\nexec nice -n 10 {shlex.quote(str(bin_ / "vllm"))} "$@"\n')
    program.chmod(0o755)
    return program


def make_tiny(bin_: Path, made: Path) -> None:
    """With the tokenizer and the chat template of the tests' small model."""
    words = [str(bin_ / "python"), "-c", TINY, str(model_dir() / MODEL_FILE), str(made)]
    subprocess.run(words, check=True, timeout=300)
