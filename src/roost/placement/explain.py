"""A decision told to people: the verdict first, then what was tried, then which node lacks what."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from roost.domain.reasons import Code
from roost.placement.decision import (
    Decision,
    FabricCount,
    Outcome,
    Rejection,
    ShardPlacement,
    Tried,
)

_NAMES: Final = 4
"""Nodes named in a line that speaks of several."""
_GROUPS: Final = 10
"""Lines of nodes under a profile; more are told by code, with one node as an example."""


def explain(decisions: Sequence[Decision], *, all_nodes: bool = False) -> str:
    """All decisions; `all_nodes` gives every rejected node a line of its own."""
    lines = [_summary(decisions)] if len(decisions) != 1 else []
    for same in _alike(decisions):
        if lines:
            lines.append("")
        lines.extend(_explain(same, all_nodes=all_nodes))
    return "\n".join(_printable(line) for line in lines)


def explain_one(decision: Decision, *, all_nodes: bool = False) -> str:
    """One decision."""
    return explain((decision,), all_nodes=all_nodes)


def _summary(decisions: Sequence[Decision]) -> str:
    told = []
    for outcome in Outcome:
        count = sum(decision.outcome is outcome for decision in decisions)
        if count:
            told.append(f"{count:,} {outcome.value}")
    return f"{_count(len(decisions), 'replica')}{': ' if told else ''}{', '.join(told)}"


def _alike(decisions: Sequence[Decision]) -> Iterator[Sequence[Decision]]:
    """Neighbours refused alike are told once; a placed replica has a place of its own to tell."""
    start = 0
    for at in range(1, len(decisions) + 1):
        if (
            at == len(decisions)
            or decisions[at].replica != decisions[at - 1].replica + 1
            or not _told_alike(decisions[start], decisions[at])
        ):
            yield decisions[start:at]
            start = at


def _told_alike(one: Decision, other: Decision) -> bool:
    # Compared by what costs nothing to read.
    return (
        one.outcome is other.outcome is Outcome.UNPLACEABLE
        and (one.model, one.why) == (other.model, other.why)
        and [dict(tried.counts) for tried in one.tried]
        == [dict(tried.counts) for tried in other.tried]
    )


def _explain(same: Sequence[Decision], *, all_nodes: bool) -> Iterator[str]:
    first, last = same[0], same[-1]
    name = f"{first.model}-{first.replica}"
    if last is not first:
        name += f" to {last.model}-{last.replica} ({_count(len(same), 'replica')})"
    yield f"{name}: {_verdict(first)}"
    if len(first.shards) > 1:
        for shard in first.shards:
            yield f"  rank {shard.rank}: {_shard(shard)}"
    if first.why:
        yield f"  {first.why}"
    remedies = [remedy.message for remedy in first.would_fit_if]
    if remedies:
        yield "  it would fit with one of:"
        yield from (f"    {remedy}" for remedy in remedies)
    for tried in first.tried:
        yield from _tried(tried, all_nodes=all_nodes)


def _verdict(decision: Decision) -> str:
    if decision.outcome is Outcome.UNPLACEABLE:
        return "unplaceable"
    by = f" by profile {decision.profile}" if decision.profile is not None else ""
    if len(decision.shards) > 1:
        on = f" of fabric {decision.fabric}" if decision.fabric is not None else ""
        where = f"on {len(decision.shards)} nodes{on}"
    else:
        where = "".join(f"on {_shard(shard)}" for shard in decision.shards)
    return f"{decision.outcome.value} {where}{by}"


def _shard(shard: ShardPlacement) -> str:
    parts = [str(shard.node)]
    if shard.gpus:
        parts.append(f"{'GPU' if len(shard.gpus) == 1 else 'GPUs'} {_indices(shard.gpus)}")
    if shard.hcas:
        parts.append(" ".join(shard.hcas))
    return ", ".join(parts)


def _tried(tried: Tried, *, all_nodes: bool) -> Iterator[str]:
    told = ", ".join(
        f"{tried.counts[code]:,} {code.value}" for code in Code if code in tried.counts
    )
    verb = "fits" if tried.fit == 1 else "fit"
    head = f"  profile {tried.profile}: {tried.fit:,} of {_count(tried.considered, 'node')} {verb}"
    yield f"{head}{': ' if told else ''}{told}"
    yield from _fabrics(tried.fabrics, all_fabrics=all_nodes)
    if all_nodes:
        for rejection in tried.rejected:
            yield f"    {rejection.node}: {_messages(rejection)}"
    elif not tried.fits:
        yield from _groups(tried.rejected)


def _fabrics(fabrics: Sequence[FabricCount], *, all_fabrics: bool) -> Iterator[str]:
    """By name; of very many those with the most nodes that fit."""
    told = list(fabrics)
    if not all_fabrics and len(told) > _GROUPS:
        told = sorted(told, key=lambda fabric: -fabric.eligible)[:_GROUPS]
    yield from (f"    {fabric.message}" for fabric in told)
    if rest := len(fabrics) - len(told):
        yield f"    and {_count(rest, 'fabric')} more, with no more nodes that fit"


def _groups(rejected: Sequence[Rejection]) -> Iterator[str]:
    """Nodes refused for the same reasons in one line, the nearest misses first."""
    by_text: dict[str, list[Rejection]] = {}
    for rejection in rejected:
        by_text.setdefault(_messages(rejection), []).append(rejection)
    if len(by_text) <= _GROUPS:
        for group in sorted(by_text.values(), key=_nearness):
            yield f"    {_nodes(group)}: {_messages(group[0])}"
        return
    by_codes: dict[tuple[Code, ...], list[Rejection]] = {}
    for rejection in rejected:
        codes = tuple(reason.code for reason in rejection.reasons)
        by_codes.setdefault(codes, []).append(rejection)
    groups = sorted(by_codes.values(), key=_nearness)
    for group in groups[:_GROUPS]:
        if len(group) == 1:
            yield f"    {group[0].node}: {_messages(group[0])}"
            continue
        codes_told = " and ".join(reason.code.value for reason in group[0].reasons)
        example = f"{group[0].node} {_messages(group[0])}"
        yield f"    {_count(len(group), 'node')} {codes_told}, such as {example}"
    rest = sum(len(group) for group in groups[_GROUPS:])
    if rest:
        yield f"    and {_count(rest, 'node')} more, refused for more reasons or earlier ones"


def _nearness(group: Sequence[Rejection]) -> tuple[int, int, int, int, str]:
    """Few reasons first; then the one that is asked last, the least missing, many nodes."""
    reasons = group[0].reasons
    first = reasons[0]
    missing = (first.needs or 0) - (first.has or 0)
    return len(reasons), -list(Code).index(first.code), missing, -len(group), group[0].node


def _nodes(group: Sequence[Rejection]) -> str:
    names = [str(rejection.node) for rejection in group]
    if len(names) > _NAMES + 1:
        names = [*names[:_NAMES], f"and {len(names) - _NAMES:,} more"]
        return f"{', '.join(names[:-1])} {names[-1]}"
    return ", ".join(names)


def _messages(rejection: Rejection) -> str:
    return "; ".join(reason.message for reason in rejection.reasons)


def _indices(indices: Iterable[int]) -> str:
    """`0-3, 6`: runs of three and more are shortened."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    told = []
    for run in runs:
        told.extend([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(index) for index in run])
    return ", ".join(told)


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _printable(line: str) -> str:
    """What a node or a driver says is not allowed to write to somebody's terminal."""
    if line.isprintable():
        return line
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in line
    )
