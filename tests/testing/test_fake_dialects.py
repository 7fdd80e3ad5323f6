"""What a fake engine says is what the real one said: pages and errors against captures."""

import argparse
import json
from pathlib import Path

import pytest

from roost.testing.fake_dialects import DIALECTS, Figures
from roost.testing.fake_refusals import refusal

CAPTURES = Path(__file__).parent.parent / "data" / "engines"
NOW = Figures(model="tiny", running=4, waiting=4, slots=4, prompt_tokens=79, generated_tokens=56)


def captured(name: str) -> str:
    return (CAPTURES / name).read_text()


@pytest.mark.parametrize(
    ("dialect", "capture"),
    [
        ("llama.cpp", "llama.cpp-b10434-metrics-load.txt"),
        ("vllm", "vllm-0.32.0-metrics-load-part.txt"),
    ],
)
def test_every_line_of_a_metrics_page_has_the_names_labels_and_help_of_the_capture(
    dialect: str, capture: str
) -> None:
    def shape(page: str) -> set[str]:
        lines = page.splitlines()
        return {one if one.startswith("#") else one.rpartition(" ")[0] for one in lines}

    said = shape(DIALECTS[dialect].metrics(NOW))
    assert len(said) > 6
    assert said <= shape(captured(capture))


def test_only_an_old_llama_cpp_measures_its_cache() -> None:
    assert "llamacpp:kv_cache_usage_ratio 1\n" in DIALECTS["llama.cpp-old"].metrics(NOW)
    assert "kv_cache" not in DIALECTS["llama.cpp"].metrics(NOW)


def test_sglang_says_what_runs_what_waits_and_how_full_it_is() -> None:
    page = DIALECTS["sglang"].metrics(NOW)
    values = dict(one.rsplit(" ", 1) for one in page.splitlines() if not one.startswith("#"))
    assert {name.partition("{")[0]: value for name, value in values.items()} == {
        "sglang:num_running_reqs": "4.0",
        "sglang:num_queue_reqs": "4.0",
        "sglang:token_usage": "1.0",
    }


@pytest.mark.parametrize(
    ("dialect", "sent", "status", "capture"),
    [
        ("vllm", b"{", 400, "vllm-0.32.0-err_badjson.json"),
        ("vllm", b'{"model":"nope"}', 404, "vllm-0.32.0-err_unknown_model.json"),
        ("vllm", b'{"prompt":"%s"}' % (b"w " * 1025), 400, "vllm-0.32.0-err_too_long.json"),
        ("llama.cpp", b"{", 500, "llama.cpp-b10434-err_badjson.json"),
        ("llama.cpp", b'{"prompt":"%s"}' % (b"w " * 6031), 400,
         "llama.cpp-b10434-err_too_long.json"),
    ],
)  # fmt: skip
def test_an_error_has_the_status_and_the_body_that_were_captured(
    dialect: str, sent: bytes, status: int, capture: str
) -> None:
    asked = argparse.Namespace(alias="tiny", embeddings=False, context=1024)
    got = refusal(DIALECTS[dialect], asked, "/v1/chat/completions", sent)
    assert got is not None
    assert got[0] == status
    said, wanted = json.loads(got[1])["error"], json.loads(captured(capture))["error"]
    if "badjson" in capture:  # where the fault is depends on the parser
        said, wanted = ({**one, "message": None, "param": None} for one in (said, wanted))
    assert said == wanted


def test_llama_cpp_serves_any_model_and_says_404_to_a_path_it_has_not() -> None:
    asked = argparse.Namespace(alias="tiny", embeddings=False, context=None)
    sent = b'{"model":"nope"}'
    assert refusal(DIALECTS["llama.cpp"], asked, "/v1/completions", sent) is None
    said = json.loads(DIALECTS["llama.cpp"].unknown_path())
    assert said == json.loads(captured("llama.cpp-b10434-get_ping.json"))
