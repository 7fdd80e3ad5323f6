"""What became of a node's cards between two reports: taken ill, recovered, gone, back."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roost.domain.gpu import Gpu


class CardChange(NamedTuple):
    """One card's change, for the history."""

    what: str
    """`gpu.unhealthy` or `gpu.healthy`."""
    why: str


def changes(
    before: Sequence[Gpu] | None, after: Sequence[Gpu] | None, *, most: int = 16
) -> Iterator[CardChange]:
    """Each card whose health differs, by uuid where there is one; at most `most` are told.

    Cards that are not known now are no change: the problem with reading them is told elsewhere.
    """
    if after is None:
        return
    earlier = {gpu.uuid or gpu.index: gpu for gpu in before or ()}
    told = 0
    for gpu in after:
        was = earlier.get(gpu.uuid or gpu.index)
        ill = gpu.healthy is False
        was_ill = was is not None and was.healthy is False
        if ill == was_ill and (not ill or gpu.unhealthy_reason == _reason(was)):
            continue
        told += 1
        if told > most:
            return
        name = f"gpu {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "")
        if ill:
            yield CardChange(
                "gpu.unhealthy", f"{name}: {gpu.unhealthy_reason or 'no reason given'}"
            )
        else:
            yield CardChange("gpu.healthy", f"{name}: no more {_reason(was) or 'evidence'}")


def _reason(gpu: Gpu | None) -> str | None:
    return gpu.unhealthy_reason if gpu is not None else None
