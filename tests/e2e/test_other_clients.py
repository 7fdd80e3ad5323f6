"""
Clients of other projects against a real engine behind the gateway.

Run where they are, each in an environment of its own:
`ROOST_TEST_LITELLM=DIR ROOST_TEST_AIPERF=DIR pytest -m slow tests/e2e/test_other_clients.py`, with
DIR the `bin` directory of an environment where `pip install litellm` or `pip install aiperf` was done.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from running import Served, environment

pytestmark = pytest.mark.slow

ASK: Final = """
import asyncio, json, os
import litellm

at = {
    "model": "openai/small", "api_base": os.environ["BASE_URL"], "api_key": os.environ["KEY"],
    "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6, "num_retries": 0,
}
told = {"whole": litellm.completion(**at).model_dump()}
stream = litellm.completion(**at, stream=True, stream_options={"include_usage": True})
told["stream"] = [part.model_dump() for part in stream]

async def several():
    return await asyncio.gather(*(litellm.acompletion(**at) for _ in range(6)))

told["several"] = [answer.model_dump() for answer in asyncio.run(several())]
told["refusals"] = []
for wrong in ({"api_key": "roost-wrong"}, {"model": "openai/nope"}):
    try:
        litellm.completion(**{**at, **wrong})
    except Exception as error:
        told["refusals"].append([type(error).__name__, str(error)])
print("TOLD " + json.dumps(told, default=str))
"""
# aiperf makes its prompts with a tokenizer, and would fetch one: this counts a byte as a token.
TOKENIZER: Final = """
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
bytewise = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytewise.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=bytewise).save_pretrained("bytewise")
"""
REQUESTS: Final = 40
LOAD: Final = f"""\
schemaVersion: "2.0"
randomSeed: 7
benchmark:
  model: small
  endpoint: {{url: "${{GATEWAY}}", api_key: "${{KEY}}", type: chat, streaming: true, use_server_token_count: true}}
  tokenizer: {{name: "${{HOME}}/bytewise"}}
  serverMetrics: {{enabled: false}}
  gpuTelemetry: {{enabled: false}}
  artifacts: {{dir: ./made, summary: [json], records: [jsonl]}}
  dataset: {{type: synthetic, entries: {REQUESTS}, prompts: {{isl: 100, osl: 12}}}}
  phases: {{type: concurrency, concurrency: 8, requests: {REQUESTS}}}
"""


def environment_of(name: str, what: str) -> Path:
    """The `bin` of an environment; where there is none, the test is skipped and says so."""
    named = os.environ.get(name)
    if not named:
        pytest.skip(f"no {what}: {name} is the bin directory of an environment that has it")
    return Path(named).absolute()


def run(served: Served, *words: str, cwd: Path) -> str:
    """Run a client, with the key in its environment; what it printed."""
    ran = subprocess.run(
        words,
        cwd=cwd,
        env=environment(
            BASE_URL=served.base_url,
            GATEWAY=served.base_url.removesuffix("/v1"),
            KEY=served.key,
            HOME=str(cwd),
            LITELLM_LOCAL_MODEL_COST_MAP="True",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.timeout(400)
def test_litellm_as_a_client_is_answered(shared: Served, tmp_path: Path) -> None:
    python = environment_of("ROOST_TEST_LITELLM", "LiteLLM") / "python"
    printed = run(shared, str(python), "-c", ASK, cwd=tmp_path)
    line = next(line for line in printed.splitlines() if line.startswith("TOLD "))
    told: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
    for answer in (told["whole"], *told["several"]):
        assert answer["model"] == "small"
        assert answer["choices"][0]["message"]["content"]
        assert 0 < answer["usage"]["completion_tokens"] <= 6
    parts = [
        part["choices"][0]["delta"].get("content") for part in told["stream"] if part["choices"]
    ]
    assert "".join(filter(None, parts))
    assert [name for name, _ in told["refusals"]] == ["AuthenticationError", "NotFoundError"]
    assert not any(shared.key in text for _, text in told["refusals"])


@pytest.mark.timeout(400)
def test_aiperf_loads_it_and_every_request_is_answered(shared: Served, tmp_path: Path) -> None:
    bin_ = environment_of("ROOST_TEST_AIPERF", "aiperf")
    run(shared, str(bin_ / "python"), "-c", TOKENIZER, cwd=tmp_path)
    (tmp_path / "load.yaml").write_text(LOAD)
    run(shared, str(bin_ / "aiperf"), "profile", "--config", "load.yaml", cwd=tmp_path)
    [file] = tmp_path.glob("made/**/profile_export_aiperf.json")
    figures: dict[str, Any] = json.loads(file.read_text())
    assert figures["request_count"]["avg"] == REQUESTS
    assert not figures.get("error_request_count")
