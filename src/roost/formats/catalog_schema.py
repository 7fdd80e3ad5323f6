"""The catalog as JSON Schema, for editors and programs that write one; the reader says more."""

from collections.abc import Mapping
from typing import Any, Final

from roost.domain.model import Queue
from roost.domain.profile import Engine, Profile, ProfileName
from roost.formats.catalog import MODEL_NAME, MOST_REPLICAS, MOST_WAITING
from roost.formats.profile import (
    ENV_NAME,
    MOST_GPUS,
    MOST_NODES,
    MOST_PRIORITY,
    MOST_SLOTS,
    PROFILE_NAME,
)
from roost.formats.reading import MAX_GB, MAX_SECONDS

Schema = Mapping[str, Any]

_PROFILE: Final = Profile(name=ProfileName(""), engine=Engine.COMMAND, source="")
_QUEUE: Final = Queue()


def catalog_schema() -> dict[str, Any]:
    """Draft 2020-12. What a schema can't say (unique names, engine rules) is left to the reader."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Roost catalog",
        "type": "object",
        "required": ["models"],
        "additionalProperties": False,
        "properties": {"models": {"type": "array", "items": _model()}},
    }


def _model() -> Schema:
    return _closed(
        {
            "name": _name(MODEL_NAME.pattern, "what clients ask for"),
            "aliases": {"type": "array", "items": _name(MODEL_NAME.pattern, "another name")},
            "replicas": _whole(0, MOST_REPLICAS, default=1),
            "priority": _whole(-MOST_PRIORITY, MOST_PRIORITY, default=0),
            "queue": _closed(
                {
                    "size": _whole(0, MOST_WAITING, default=_QUEUE.size),
                    "max_wait_s": _above_zero(MAX_SECONDS, default=_QUEUE.max_wait_s),
                }
            ),
            "profiles": {"type": "array", "minItems": 1, "items": _profile()},
        },
        required=("name", "profiles"),
    )


def _profile() -> Schema:
    splits = MOST_GPUS * MOST_NODES
    texts = {"type": "array", "items": {"type": "string"}}
    size = {**_above_zero(MAX_GB), "type": ["number", "null"], "description": "GB of 10^9 bytes"}
    metrics = _closed(
        {"path": _path("/metrics"), "running": texts, "waiting": texts, "kv_usage": texts}
    )
    profile = _closed(
        {
            "name": _name(PROFILE_NAME.pattern, "unique in the model"),
            "priority": _whole(-MOST_PRIORITY, MOST_PRIORITY, default=0),
            "engine": {"enum": [engine.value for engine in Engine]},
            "source": {"type": "string", "minLength": 1, "description": "hf:OWNER/NAME, or a path"},
            "gpu_class": {
                "type": ["string", "null"],
                "minLength": 1,
                "description": "left out: runs on the CPU",
            },
            "gpus_per_node": _whole(1, MOST_GPUS),
            "nodes": _whole(1, MOST_NODES, default=_PROFILE.nodes),
            "tensor_parallel": _whole(1, splits),
            "pipeline_parallel": _whole(1, splits),
            "node_selector": {"type": "object", "additionalProperties": {"type": "string"}},
            "min_memory_gb": size,
            "min_disk_gb": size,
            "min_gpu_memory_gb": size,
            "slots": {**_whole(1, MOST_SLOTS), "type": ["integer", "null"]},
            "load_timeout_s": _above_zero(MAX_SECONDS, default=_PROFILE.load_timeout_s),
            "drain_timeout_s": _above_zero(MAX_SECONDS, default=_PROFILE.drain_timeout_s),
            "args": texts,
            "env": {
                "type": "object",
                "propertyNames": {"pattern": f"^{ENV_NAME.pattern}$"},
                "additionalProperties": {"type": "string"},
            },
            "command": {**texts, "minItems": 1},
            "health": _path(_PROFILE.health),
            "metrics": {"oneOf": [metrics, {"type": "null"}]},
        },
        required=("name", "engine"),
    )
    for_command = {"properties": {"engine": {"const": Engine.COMMAND.value}}}
    return {
        **profile,
        "if": for_command,
        "then": {"required": ["command"]},
        "else": {
            "required": ["source"],
            "properties": {"command": False, "health": False, "metrics": False},
        },
        "dependentRequired": {"gpus_per_node": ["gpu_class"], "min_gpu_memory_gb": ["gpu_class"]},
    }


def _closed(properties: Schema, required: tuple[str, ...] = ()) -> dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**closed, "required": list(required)} if required else closed


def _name(pattern: str, description: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$", "description": description}


def _whole(least: int, most: int, **more: object) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most, **more}


def _above_zero(most: int, **more: object) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": most, **more}


def _path(default: str) -> Schema:
    return {"type": "string", "pattern": "^/[!-~]*$", "default": default}
