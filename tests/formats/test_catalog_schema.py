"""The schema takes what the reader takes, and knows the same keys."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from formats_catalogs import FULL, models
from roost.domain.model import Catalog, Model
from roost.engines import rules
from roost.errors import Unusable
from roost.formats.catalog import MODEL_KEYS, QUEUE_KEYS, catalog_to_json, parse_catalog
from roost.formats.catalog_schema import catalog_schema
from roost.formats.profile import METRICS_KEYS, PROFILE_KEYS

VALIDATOR = jsonschema.Draft202012Validator(catalog_schema())


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(catalog_schema())
    json.dumps(catalog_schema())


def test_the_schema_knows_the_keys_of_the_reader() -> None:
    model = catalog_schema()["properties"]["models"]["items"]
    profile = model["properties"]["profiles"]["items"]
    metrics = profile["properties"]["metrics"]["oneOf"][0]
    assert tuple(model["properties"]) == MODEL_KEYS
    assert tuple(model["properties"]["queue"]["properties"]) == QUEUE_KEYS
    assert tuple(profile["properties"]) == PROFILE_KEYS
    assert tuple(metrics["properties"]) == METRICS_KEYS


def test_a_catalog_with_every_key_is_valid() -> None:
    catalog = parse_catalog(FULL, filename="c", rules=rules.broken)
    VALIDATOR.validate(catalog_to_json(catalog))


@given(models)
def test_what_is_written_is_valid(model: Model) -> None:
    VALIDATOR.validate(catalog_to_json(Catalog(models=(model,))))


PROFILE: dict[str, Any] = {"name": "p", "engine": "llama.cpp", "source": "s"}


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {**PROFILE, "engine": "vlm"},
        {**PROFILE, "node_selector": {"ram": 32}},
        {**PROFILE, "min_memory_gb": 0},
        {**PROFILE, "min_memory_gb": "24"},
        {**PROFILE, "slots": 0},
        {**PROFILE, "nodes": 1.5},
        {**PROFILE, "gpus_per_node": 1},
        {**PROFILE, "gpus_per_node": 0, "gpu_class": "x"},
        {**PROFILE, "args": [1]},
        {**PROFILE, "env": {"A-B": "x"}},
        {**PROFILE, "health": "/x"},
        {**PROFILE, "command": ["x"]},
        {**PROFILE, "name": "a/b"},
        {**PROFILE, "gpu_clas": "x"},
        {"name": "p", "engine": "llama.cpp"},
        {"name": "p", "engine": "command"},
    ],
)
def test_what_the_schema_refuses_the_reader_refuses(profile: dict[str, Any]) -> None:
    catalog = {"models": [{"name": "m", "profiles": [profile]}]}
    assert not VALIDATOR.is_valid(catalog)
    with pytest.raises(Unusable):
        parse_catalog(json.dumps(catalog), filename="c", rules=rules.broken)
