"""Decisions as JSON (FORMATS.md §3), and back for whoever only has the JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import msgspec

from roost.domain.fabric import FabricName, HcaName
from roost.domain.gpu import GpuUuid
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.profile import ProfileName
from roost.domain.reasons import Code, Reason, Unit
from roost.placement.decision import (
    Change,
    Decision,
    FabricCount,
    Outcome,
    Rejection,
    Remedy,
    ShardPlacement,
    Tried,
)


class ShardJson(TypedDict):
    """A replica's part on one node."""

    rank: int
    node: str
    gpus: list[int]
    gpu_uuids: list[str]
    hcas: list[str]


class ReasonJson(TypedDict):
    """One reason against one node; null where there is no number."""

    code: str
    has: int | None
    needs: int | None
    unit: str | None
    message: str


class RejectionJson(TypedDict):
    """A node turned down, with all its reasons."""

    node: str
    reasons: list[ReasonJson]


class FabricCountJson(TypedDict):
    """How many nodes of one fabric would do."""

    fabric: str
    eligible: int
    needs: int
    message: str


class TriedJson(TypedDict):
    """One profile tried on every node: `considered` = `fit` + the sum of `counts`."""

    profile: str
    outcome: str
    considered: int
    fit: int
    counts: dict[str, int]
    rejected: NotRequired[list[RejectionJson]]
    fabrics: list[FabricCountJson]


class RemedyJson(TypedDict):
    """One change after which the replica would fit."""

    change: str
    node: NotRequired[str]
    fabric: NotRequired[str]
    amount: NotRequired[int]
    message: str


class DecisionJson(TypedDict):
    """The answer for one replica; `tried` is not there when it is kept."""

    model: str
    replica: int
    order: int
    outcome: str
    profile: str | None
    fabric: str | None
    shards: list[ShardJson]
    why: str
    tried: NotRequired[list[TriedJson]]
    would_fit_if: NotRequired[list[RemedyJson]]


class DecisionsJson(TypedDict):
    """What `decisions_to_json` returns: its JSON Schema is made from this."""

    decisions: list[DecisionJson]


def decisions_schema() -> dict[str, Any]:
    """The JSON Schema of a plan's answer."""
    return msgspec.json.schema(DecisionsJson)


def decisions_to_json(decisions: Iterable[Decision], *, brief: bool = False) -> dict[str, Any]:
    """The whole answer; `brief` leaves out the rejected nodes, and costs nothing for them."""
    return {"decisions": [decision_to_json(decision, brief=brief) for decision in decisions]}


def decision_to_json(decision: Decision, *, brief: bool = False) -> DecisionJson:
    """The answer for one replica."""
    answer: DecisionJson = {
        "model": decision.model,
        "replica": decision.replica,
        "order": decision.order,
        "outcome": decision.outcome.value,
        "profile": decision.profile,
        "fabric": decision.fabric,
        "shards": [_shard_to_json(shard) for shard in decision.shards],
        "why": decision.why,
    }
    if decision.outcome is not Outcome.KEPT:
        answer["tried"] = [_tried_to_json(tried, brief=brief) for tried in decision.tried]
    if decision.outcome is Outcome.UNPLACEABLE:
        answer["would_fit_if"] = [_remedy_to_json(remedy) for remedy in decision.would_fit_if]
    return answer


def rejection_to_json(rejection: Rejection) -> RejectionJson:
    """One node turned down: the API pages them."""
    return {
        "node": rejection.node,
        "reasons": [
            {
                "code": reason.code.value,
                "has": reason.has,
                "needs": reason.needs,
                "unit": None if reason.unit is None else reason.unit.value,
                "message": reason.message,
            }
            for reason in rejection.reasons
        ],
    }


def _tried_to_json(tried: Tried, *, brief: bool) -> TriedJson:
    answer: dict[str, object] = {
        "profile": tried.profile,
        "outcome": "fits" if tried.fits else "rejected",
        "considered": tried.considered,
        "fit": tried.fit,
        "counts": {code.value: count for code, count in sorted_counts(tried.counts)},
    }
    if not brief:
        answer["rejected"] = [rejection_to_json(rejection) for rejection in tried.rejected]
    answer["fabrics"] = [_fabric_to_json(fabric) for fabric in tried.fabrics]
    return answer  # type: ignore[return-value]  # built key by key, in the order of the format


def sorted_counts(counts: Mapping[Code, int]) -> list[tuple[Code, int]]:
    """In the order of the table, which is the order in which nodes are charged."""
    return [(code, counts[code]) for code in Code if code in counts]


def _shard_to_json(shard: ShardPlacement) -> ShardJson:
    return {
        "rank": shard.rank,
        "node": shard.node,
        "gpus": list(shard.gpus),
        "gpu_uuids": list(shard.gpu_uuids),
        "hcas": list(shard.hcas),
    }


def _fabric_to_json(fabric: FabricCount) -> FabricCountJson:
    return {
        "fabric": fabric.fabric,
        "eligible": fabric.eligible,
        "needs": fabric.needs,
        "message": fabric.message,
    }


def _remedy_to_json(remedy: Remedy) -> RemedyJson:
    answer: dict[str, object] = {"change": remedy.change.value}
    for key in ("node", "fabric", "amount"):
        value = getattr(remedy, key)
        if value is not None:
            answer[key] = value
    answer["message"] = remedy.message
    return answer  # type: ignore[return-value]  # built key by key, in the order of the format


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRead:
    """One profile tried, as the JSON said; without rejected nodes if that was brief."""

    profile: ProfileName
    fits: bool
    considered: int
    fit: int
    counts: Mapping[Code, int]
    rejected: Sequence[Rejection]
    fabrics: Sequence[FabricCount]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRead:
    """The answer for one replica, as the JSON said."""

    model: ModelName
    replica: int
    order: int
    outcome: Outcome
    profile: ProfileName | None
    fabric: FabricName | None
    shards: tuple[ShardPlacement, ...]
    why: str
    tried: Sequence[Tried]
    would_fit_if: Sequence[Remedy]


def decisions_from_json(value: Mapping[str, Any]) -> tuple[Decision, ...]:
    """What `decisions_to_json` wrote: `ctl explain` has only that, and prints it like `plan`."""
    answer = msgspec.convert(value, DecisionsJson)
    return tuple(_decision_from_json(decision) for decision in answer["decisions"])


def _decision_from_json(value: DecisionJson) -> Decision:
    profile, fabric = value["profile"], value["fabric"]
    return DecisionRead(
        model=ModelName(value["model"]),
        replica=value["replica"],
        order=value["order"],
        outcome=Outcome(value["outcome"]),
        profile=None if profile is None else ProfileName(profile),
        fabric=None if fabric is None else FabricName(fabric),
        shards=tuple(_shard_from_json(shard) for shard in value["shards"]),
        why=value["why"],
        tried=tuple(_tried_from_json(tried) for tried in value.get("tried", ())),
        would_fit_if=tuple(_remedy_from_json(remedy) for remedy in value.get("would_fit_if", ())),
    )


def _shard_from_json(value: ShardJson) -> ShardPlacement:
    return ShardPlacement(
        rank=value["rank"],
        node=NodeName(value["node"]),
        gpus=tuple(value["gpus"]),
        gpu_uuids=tuple(GpuUuid(uuid) for uuid in value["gpu_uuids"]),
        hcas=tuple(HcaName(hca) for hca in value["hcas"]),
    )


def _tried_from_json(value: TriedJson) -> Tried:
    return TriedRead(
        profile=ProfileName(value["profile"]),
        fits=value["outcome"] == "fits",
        considered=value["considered"],
        fit=value["fit"],
        counts={Code(code): count for code, count in value["counts"].items()},
        rejected=tuple(_rejection_from_json(one) for one in value.get("rejected", ())),
        fabrics=tuple(
            FabricCount(
                fabric=FabricName(one["fabric"]), eligible=one["eligible"], needs=one["needs"]
            )
            for one in value["fabrics"]
        ),
    )


def _rejection_from_json(value: RejectionJson) -> Rejection:
    return Rejection(
        node=NodeName(value["node"]),
        reasons=tuple(
            Reason(
                code=Code(reason["code"]),
                message=reason["message"],
                has=reason["has"],
                needs=reason["needs"],
                unit=None if reason["unit"] is None else Unit(reason["unit"]),
            )
            for reason in value["reasons"]
        ),
    )


def _remedy_from_json(value: RemedyJson) -> Remedy:
    node, fabric = value.get("node"), value.get("fabric")
    return Remedy(
        change=Change(value["change"]),
        message=value["message"],
        node=None if node is None else NodeName(node),
        fabric=None if fabric is None else FabricName(fabric),
        amount=value.get("amount"),
    )
