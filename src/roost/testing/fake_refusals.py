"""Which requests a fake engine answers with an error, and with which: as that engine does."""

import argparse
import json
from typing import Any

from roost.testing.fake_dialects import Dialect

Refusal = tuple[int, bytes]
"""A status and a body."""


def refusal(dialect: Dialect, asked: argparse.Namespace, path: str, body: bytes) -> Refusal | None:
    """The error that this body gets at this path; `None`: it is served."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return dialect.bad_json()
    if path == "/v1/embeddings" and not asked.embeddings:
        return dialect.no_embeddings()
    model = said.get("model")
    if model is not None and model != asked.alias:
        unknown = dialect.unknown_model(str(model), asked.alias)
        if unknown is not None:
            return 404, unknown
    tokens = words(said)
    if asked.context is not None and tokens > asked.context:
        return 400, dialect.too_long(tokens, asked.context)
    return None


def words(said: dict[str, Any]) -> int:
    """Of the prompt, the messages or the input: a fake engine's tokens."""
    given = [said.get("prompt"), said.get("input")]
    given += [one.get("content") for one in said.get("messages") or () if isinstance(one, dict)]
    return sum(len(str(text).split()) for text in given if text is not None)
