import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.formats.agent_wire import Report, decode_report, encode
from roost.formats.unknown_keys import MOST, unknown_keys

REPORT = {"identity": "i", "sequence": 1, "started_at": 1.0, "facts": {"labels": {"any": "thing"}}}


def test_what_this_version_sends_holds_no_unknown_key() -> None:
    assert unknown_keys(encode(decode_report(json.dumps(REPORT).encode())), Report) == ()


def test_keys_of_a_newer_version_are_named_with_where_they_are_and_once_each() -> None:
    gpu = {"index": 0, "gpu_class": "h100", "sparkle": True}
    facts = {"labels": {"own": "x"}, "gpus": [gpu, {**gpu, "index": 1}], "storage": None, "new": {}}
    shard = {"placement": "p", "load": {"running": 1, "thinking": 2}}
    report = {**REPORT, "facts": facts, "quantum": {"qubits": 3}, "shards": [shard]}
    assert unknown_keys(json.dumps(report).encode(), Report) == (
        "facts.gpus[].sparkle",
        "facts.new",
        "quantum",
        "shards[].load.thinking",
    )


def test_names_that_somebody_else_chose_are_few_short_and_printable() -> None:
    hostile = {f"{n}\n\x1b[31m{'x' * 10_000}": 1 for n in range(1000)}
    found = unknown_keys(json.dumps({**REPORT, **hostile}).encode(), Report)
    assert len(found) == MOST
    assert all(len(key) <= 80 and key.isprintable() for key in found)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"null", b'{"facts": []}'])
def test_what_is_no_report_names_nothing(body: bytes) -> None:
    assert unknown_keys(body, Report) == ()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["facts", "gpus", "storage", "shards", "spec", "profile", "labels", "?"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_document_is_walked_and_its_own_keys_are_found(document: object) -> None:
    found = unknown_keys(json.dumps(document).encode(), Report)
    assert ("?" in found) == (isinstance(document, dict) and "?" in document)
    assert all(key.rpartition(".")[2] not in {"facts", "shards"} or "." in key for key in found)
