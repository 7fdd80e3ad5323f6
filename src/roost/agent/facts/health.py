"""Whether a card may be used, by the evidence: unhealthy while it persists, well without it."""

from typing import Final

from roost.agent.facts.card import Evidence

_FABRIC_READY: Final = "completed"
_NO_RECOVERY: Final = frozenset({"none", "n/a"})


def judge(evidence: Evidence) -> tuple[bool | None, str | None]:
    """Healthy, and the reason if not; None: the card said nothing from which it could be told."""
    reasons = [reason for reason in _against(evidence) if reason]
    if evidence.lost:
        # Of a card that is not there, counters say nothing.
        reasons = reasons[:1]
    if reasons:
        return False, "; ".join(reasons)
    return (True if evidence.answers or _counted(evidence) else None), None


def _against(evidence: Evidence) -> list[str | None]:
    return [
        evidence.lost,
        _ecc(evidence.uncorrectable_ecc),
        "row remapping failed" if evidence.row_remap_failed else None,
        "row remapping pending" if evidence.row_remap_pending else None,
        "page retirement pending" if evidence.page_retirement_pending else None,
        "memory repair pending" if evidence.repair_pending else None,
        _recovery(evidence.recovery_action),
        _fabric(evidence),
    ]


def _counted(evidence: Evidence) -> bool:
    return any(
        fact is not None
        for fact in (
            evidence.uncorrectable_ecc,
            evidence.row_remap_failed,
            evidence.row_remap_pending,
            evidence.page_retirement_pending,
        )
    )


def _ecc(count: int | None) -> str | None:
    if not count:
        return None
    return f"{count} uncorrectable ECC error{'' if count == 1 else 's'}"


def _recovery(action: str | None) -> str | None:
    if action is None or action.lower() in _NO_RECOVERY:
        return None
    return f"the driver asks for: {action.lower()}"


def _fabric(evidence: Evidence) -> str | None:
    state, status = evidence.fabric_state, evidence.fabric_status
    if state is None:
        return None
    if state.lower() != _FABRIC_READY:
        return f"NVSwitch fabric is not ready: {state.lower()}"
    if status is not None and status.lower() != "success":
        return f"NVSwitch fabric failed: {status.lower()}"
    return f"NVSwitch fabric is unhealthy: {evidence.fabric_ill}" if evidence.fabric_ill else None
