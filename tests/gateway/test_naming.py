import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.gateway.naming import BadBody, find_model, model_of, read_ask, with_model


@pytest.mark.parametrize(
    ("body", "ask"),
    [
        (b'{"model":"a"}', ("a", False)),
        (b' {"stream" : true , "model" : "a" }\n', ("a", True)),
        (b'{"stream":false,"model":"a","x":{"model":"b"}}', ("a", False)),
        (b'{"mod\\u0065l":"a"}', ("a", False)),
        (b'{"model":"a","model":"b"}', ("b", False)),
        (b'{"stream":"yes","model":"a"}', ("a", False)),
        ('{"model":"ü","stream":true}'.encode(), ("ü", True)),
    ],
)
def test_the_model_and_the_wish_for_a_stream_are_read(body: bytes, ask: tuple[str, bool]) -> None:
    assert read_ask(body) == ask


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"model=a", "not JSON"),
        (b'{"model":"a"', "not JSON"),
        (b'{"model":"a"} x', "not JSON"),
        (b"[]", "expected `object`"),
        (b"{}", "names no `model`"),
        (b'{"model":null}', "expected `str`"),
        (b'{"model":7}', "expected `str`"),
        (b'{"model":"a","x":' + b"[" * 50_000, "nested too deeply"),
        (b'{"model":"\xff"}', "UTF-8"),
    ],
)
def test_a_body_that_names_no_model_is_explained(body: bytes, words: str) -> None:
    with pytest.raises(BadBody, match=words):
        read_ask(body)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{ "model" \n:\t"a" , "x" : 1.50 }', b'{ "model" \n:\t"new" , "x" : 1.50 }'),
        (b'{"x":{"model":"a"},"model":"a"}', b'{"x":{"model":"a"},"model":"new"}'),
        (b'{"model":"a","x":{"model":"a"}}', b'{"model":"new","x":{"model":"a"}}'),
        (b'{"x":[{"model":"a"}],"model":"a"}', b'{"x":[{"model":"a"}],"model":"new"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"new"}'),
        (b'{"x":"model","model":"a"}', b'{"x":"model","model":"new"}'),
        (b'{"mod\\u0065l":"a","x":{"model":"a"}}', b'{"mod\\u0065l":"new","x":{"model":"a"}}'),
        (b'{"model":"a","model":"b"}', b'{"model":"a","model":"new"}'),
        (b'{"model":"a\\"}{\\\\","x":"}"}', b'{"model":"new","x":"}"}'),
        (b'{"x":{"model":"a"}}', b'{"x":{"model":"a"}}'),
        (b'{"model":null}', b'{"model":null}'),
        (b'[{"model":"a"}]', b'[{"model":"a"}]'),
        (b"{}", b"{}"),
    ],
)
def test_only_the_top_level_value_changes(body: bytes, changed: bytes) -> None:
    assert with_model(body, "new") == changed


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["model", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model", "x", '"model"', "\\"]) | st.text(), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["x", "y", "model", "\\", '"']) | st.text(), json_values, max_size=5
    ),
    st.text(),
    st.text(),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_nothing_but_the_name_changes_in_any_object(
    rest: dict[str, Any], old: str, new: str, first: bool, indent: int | None
) -> None:
    named = {"model": old, **{k: v for k, v in rest.items() if k != "model"}}
    if not first:
        named["model"] = named.pop("model")
    try:
        body = json.dumps(named, indent=indent, ensure_ascii=bool(indent)).encode()
        new.encode()
    except UnicodeEncodeError:
        return
    changed = with_model(body, new)
    assert json.loads(changed) == named | {"model": new}
    span = find_model(body)
    assert span is not None
    assert json.loads(body[span[0] : span[1]]) == old
    before, after = body[: span[0]], body[span[1] :]
    assert changed.startswith(before)
    assert changed.endswith(after)
    assert model_of(changed) == new


def test_a_name_at_the_end_of_a_long_body_is_exchanged() -> None:
    body = (
        b'{"messages":[{"role":"user","content":"'
        + b'say \\"model\\" ' * 10_000
        + b'"}],"model":"a"}'
    )
    assert read_ask(body) == ("a", False)
    assert with_model(body, "b") == body[:-4] + b'"b"}'
