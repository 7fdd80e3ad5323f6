"""Why a decision is what it is, in a sentence: what won and the runner-up, or what is nearest."""

from collections.abc import Callable, Mapping, Sequence

from roost.domain.fabric import FabricName
from roost.domain.units import has_gb
from roost.placement import bits, filters, ranking, slices
from roost.placement.needs import CPU_REPLICAS, Need
from roost.placement.remedies import Found
from roost.placement.tried import Trial
from roost.placement.view import View


def placed(trial: Trial, places: tuple[int, ...], fabric: FabricName | None) -> str:
    """What the place was won by, and who would have been next."""
    won = _one_node(trial, places[0]) if fabric is None else _several(trial, places)
    spans = _spans(trial, places)
    return f"{won}; {spans}" if spans else won


def unplaceable(trials: Sequence[Trial], remedies: Sequence[Found]) -> str:
    """What is nearest to fitting: what the smallest remedy would mend, if there is one."""
    if not trials:
        return "no profile fits: the model has none"
    if not trials[0].view.size:
        return "no profile fits: the fleet has no nodes"
    if remedies and (node := remedies[0].remedy.node) is not None:
        trial = trials[remedies[0].profile]
        return f"no profile fits: nearest is {_nearest((trial,), trial.view.places[node])}"
    for trial in trials:
        if trial.fabrics:
            return f"no profile fits: {max(trial.fabrics, key=lambda f: f.eligible).message}"
    return f"no profile fits: nearest is {_nearest(trials, _furthest(trials[0]))}"


def _furthest(trial: Trial) -> int:
    """The place of a node that gets through as many filters, in their order, as any does."""
    left = trial.view.lasting.every
    for _, through in filters.stages(trial.need, trial.view):
        if not left & through:
            break
        left &= through
    return bits.lowest(left)


def _nearest(trials: Sequence[Trial], place: int) -> str:
    """The node, and the least that is said against it by any profile."""
    row = trials[0].view.row(place)
    against = min(
        (filters.Against(trial.need, trial.fabrics)(row) for trial in trials),
        key=len,
    )
    told = "; ".join(reason.message.removeprefix("is ") for reason in against)
    return f"{row.node.name}, {told}"


def _one_node(trial: Trial, winner: int) -> str:
    need, view = trial.need, trial.view
    others = trial.fitting ^ (1 << winner)
    if not others:
        return "the only node that fits"
    second = ranking.best(need, view, others)
    name = view.row(second).node.name
    pair = 1 << winner | 1 << second
    for criterion in ranking.criteria(need):
        if criterion(need, view, pair) != pair:
            first, then = _TOLD[criterion](need, view, winner, second)
            return f"{first}; next {name} ({then})"
    return f"first by name among equals; next {name}"


def _one_domain(need: Need, view: View, winner: int, _second: int) -> tuple[str, str]:
    row = view.row(winner)
    if row.cards is not None and need.kind is not None:
        chosen = row.cards.choose(need.kind, row.free, need.cards)
        if row.cards.domains_of(chosen) == (1, False):
            return f"holds {need.cards} GPUs in one NVLink domain", "does not"
    return f"not known to split {need.cards} GPUs over NVLink domains", "does"


def _partly_used(_need: Need, _view: View, _winner: int, _second: int) -> tuple[str, str]:
    return "partly used already", "untouched"


def _fewest_left(need: Need, view: View, winner: int, second: int) -> tuple[str, str]:
    gpu_class = "" if need.kind is None else need.kind.gpu_class
    free = view.numbers[need.free_of_class]
    left, then = (slices.at(free, place) - need.cards for place in (winner, second))
    return f"fewest free {gpu_class} left ({left})", str(then)


def _least_wanted(_need: Need, view: View, winner: int, second: int) -> tuple[str, str]:
    wanted, then = (slices.at(view.lasting.scarcity, place) for place in (winner, second))
    gpus = "GPU" if wanted == 1 else "GPUs"
    return f"least wanted by the catalog's profiles ({wanted} {gpus})", str(then)


def _fewest_cpu_replicas(_need: Need, view: View, winner: int, second: int) -> tuple[str, str]:
    has, then = (slices.at(view.numbers[CPU_REPLICAS], place) for place in (winner, second))
    return f"fewest CPU replicas ({has})", str(then)


def _no_gpu(_need: Need, view: View, _winner: int, second: int) -> tuple[str, str]:
    reported = view.row(second).node.facts.gpus is not None
    return "has no GPU", "has" if reported else "does not report its GPUs"


def _most_memory(_need: Need, view: View, winner: int, second: int) -> tuple[str, str]:
    def told(place: int) -> str:
        left = view.row(place).memory_left
        return "not reported" if left is None else f"{has_gb(max(0, left))} GB"

    return f"most memory left ({told(winner)})", told(second)


_TOLD: Mapping[ranking.Criterion, Callable[[Need, View, int, int], tuple[str, str]]] = {
    ranking.may_be_one_domain: _one_domain,
    ranking.partly_used: _partly_used,
    ranking.fewest_left: _fewest_left,
    ranking.least_wanted: _least_wanted,
    ranking.fewest_cpu_replicas: _fewest_cpu_replicas,
    ranking.has_no_gpu: _no_gpu,
    ranking.most_memory_left: _most_memory,
}


def _several(trial: Trial, places: tuple[int, ...]) -> str:
    chosen, *others = trial.enough
    has = chosen.size
    if not others:
        won = f"{chosen.fabric} is the only fabric with {trial.need.nodes} nodes that fit ({has})"
    elif (then := others[0].size) != has:
        won = f"fewest nodes that fit on {chosen.fabric} ({has}); next {others[0].fabric} ({then})"
    else:
        won = f"{chosen.fabric} is first by name among equals ({has}); next {others[0].fabric}"
    left = chosen.nodes
    for place in places:
        left ^= 1 << place
    if not left or trial.need.kind is None:
        return won
    view, free = trial.view, trial.view.numbers[trial.need.free_of_class]
    last = slices.at(free, places[-1])
    second = bits.lowest(slices.most(free, left))
    name = view.row(second).node.name
    return (
        f"{won}; its emptiest nodes (at least {last} free), next {name} ({slices.at(free, second)})"
    )


def _spans(trial: Trial, places: tuple[int, ...]) -> str:
    """That a group is known to be in several NVLink domains, or may be."""
    need, view = trial.need, trial.view
    if need.kind is None or need.cards == 1:
        return ""
    told = []
    for place in places:
        row = view.row(place)
        if row.cards is None:
            continue
        domains, some_unknown = row.cards.domains_of(
            row.cards.choose(need.kind, row.free, need.cards)
        )
        on = f" on {row.node.name}" if len(places) > 1 else ""
        if domains > 1:
            told.append(f"the group spans {domains} NVLink domains{on}")
        elif domains and some_unknown:
            told.append(f"the group may span NVLink domains{on}, not all are reported")
    return "; ".join(told)
