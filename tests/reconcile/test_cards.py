from dataclasses import replace

import pytest

from roost.domain.gpu import Gpu, GpuClass, GpuUuid
from roost.reconcile.cards import changes


def gpu(index: int, healthy: bool | None = True, why: str | None = None) -> Gpu:
    return Gpu(
        index=index,
        gpu_class=GpuClass("h100"),
        uuid=GpuUuid(f"GPU-{index}"),
        healthy=healthy,
        unhealthy_reason=why,
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((gpu(0),), (gpu(0),), []),
        ((gpu(0),), (gpu(0, None),), []),
        (None, (gpu(0),), []),
        ((gpu(0),), None, []),
        ((gpu(0),), (gpu(0, False, "ecc"),), [("gpu.unhealthy", "gpu 0 (GPU-0): ecc")]),
        (None, (gpu(0, False, "ecc"),), [("gpu.unhealthy", "gpu 0 (GPU-0): ecc")]),
        ((gpu(0, False, "ecc"),), (gpu(0, False, "ecc"),), []),
        ((gpu(0, False, "a"),), (gpu(0, False, "b"),), [("gpu.unhealthy", "gpu 0 (GPU-0): b")]),
        ((gpu(0, False, "ecc"),), (gpu(0),), [("gpu.healthy", "gpu 0 (GPU-0): no more ecc")]),
    ],
)
def test_the_history_has_each_card_that_falls_ill_or_recovers(
    before: tuple[Gpu, ...] | None, after: tuple[Gpu, ...] | None, expected: list[tuple[str, str]]
) -> None:
    assert [tuple(change) for change in changes(before, after)] == expected


def test_a_card_is_the_same_by_its_uuid_when_its_index_shifts() -> None:
    ill = gpu(3, False, "ecc")
    assert list(changes((gpu(0), ill), (replace(ill, index=0),))) == []


def test_a_node_of_very_many_cards_does_not_fill_the_history() -> None:
    assert len(list(changes(None, [gpu(n, False, "ecc") for n in range(500)]))) == 16
