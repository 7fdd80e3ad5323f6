"""Which cards this machine had: one that is gone stays listed, missing, until it is back."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from roost.agent.facts.gpu_class import UNKNOWN
from roost.domain.gpu import Gpu, GpuUuid
from roost.files import write_private

MISSING: Final = "missing"
MOST: Final = 1024
_MOST_BYTES: Final = 4_000_000


def with_missing(seen: Sequence[Gpu], known: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """What is seen, and what was known and is not seen any more, with indices of their own.

    A card that is listed and tells nothing of itself is the known one of its index, if that is
    gone; one that still tells its uuid keeps its class.
    """
    uuids = {gpu.uuid for gpu in seen}
    gone: dict[GpuUuid | None, Gpu] = {
        gpu.uuid: gpu for gpu in known if gpu.uuid is not None and gpu.uuid not in uuids
    }
    by_index = {gpu.index: gpu for gpu in gone.values()}
    by_uuid = {gpu.uuid: gpu for gpu in known}
    listed: list[Gpu] = []
    for gpu in seen:
        before = by_index.get(gpu.index)
        if gpu.uuid is not None and gpu.gpu_class == UNKNOWN and gpu.uuid in by_uuid:
            listed.append(replace(gpu, gpu_class=by_uuid[gpu.uuid].gpu_class))
        elif gpu.uuid is None and gpu.healthy is False and before is not None:
            del gone[before.uuid]
            listed.append(replace(before, healthy=False, unhealthy_reason=gpu.unhealthy_reason))
        else:
            listed.append(gpu)
    used = {gpu.index for gpu in listed}
    for gpu in sorted(gone.values(), key=lambda one: (one.index, one.uuid or "")):
        index = gpu.index if gpu.index not in used else max(used, default=-1) + 1
        used.add(index)
        listed.append(replace(gpu, index=index, healthy=False, unhealthy_reason=MISSING))
    return tuple(sorted(listed, key=lambda one: one.index))


class Memory:
    """The cards known so far, in a file of the agent's; they are forgotten with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Gpu] | None = None
        self._kept = False
        """The file was there: without it now, somebody has removed it."""

    def known(self) -> tuple[Gpu, ...]:
        """All that were seen here; nothing, if the file is not there or is not ours."""
        if self._known is None or (self._kept and not self._path.exists()):
            self._known = {}
            self._kept = False
            with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
                if self._path.stat().st_size <= _MOST_BYTES:
                    self._kept = True
                    kept = msgspec.json.decode(self._path.read_bytes(), type=tuple[Gpu, ...])
                    self._known = {gpu.uuid: gpu for gpu in kept[:MOST] if gpu.uuid is not None}
        return tuple(self._known.values())

    def keep(self, seen: Sequence[Gpu]) -> None:
        """Remember what is seen, as it is when it is well."""
        before: dict[GpuUuid | None, Gpu] = {gpu.uuid: gpu for gpu in self.known()}
        kept: dict[GpuUuid | None, Gpu] = {
            gpu.uuid: replace(gpu, healthy=None, unhealthy_reason=None, foreign_processes=None)
            for gpu in seen
            if gpu.uuid is not None and gpu.unhealthy_reason != MISSING and gpu.gpu_class != UNKNOWN
        }
        after = {**before, **kept}
        if after != before and len(after) <= MOST:
            self._known = {str(uuid): gpu for uuid, gpu in after.items()}
            with contextlib.suppress(OSError):
                write_private(self._path, msgspec.json.encode(tuple(after.values())))
                self._kept = True
