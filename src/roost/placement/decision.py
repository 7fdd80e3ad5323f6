"""What a decision says: where, why, what else was tried, and what would change a no."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from roost.domain.fabric import FabricName, HcaName
from roost.domain.gpu import GpuUuid
from roost.domain.model import ModelName
from roost.domain.node import NodeName
from roost.domain.profile import ProfileName
from roost.domain.reasons import Code, Reason


class Outcome(StrEnum):
    """What became of one replica."""

    PLACED = "placed"
    KEPT = "kept"
    """It already holds an allocation; nothing was decided."""
    UNPLACEABLE = "unplaceable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlacement:
    """A replica's part on one node; `gpu_uuids` is empty where the node reports none."""

    rank: int
    node: NodeName
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[GpuUuid, ...] = ()
    hcas: tuple[HcaName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A node turned down, with all its reasons in the order of `Code`."""

    node: NodeName
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricCount:
    """How many nodes of one fabric would do, of how many."""

    fabric: FabricName
    eligible: int
    needs: int

    @property
    def message(self) -> str:
        """`ib0 has 1 node that fits, needs 2`."""
        nodes = "node that fits" if self.eligible == 1 else "nodes that fit"
        return f"{self.fabric} has {self.eligible} {nodes}, needs {self.needs}"


class Tried(Protocol):
    """One profile tried on every node of the fleet; `rejected` costs nothing until it is read."""

    @property
    def profile(self) -> ProfileName:
        """Which profile."""
        ...

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        ...

    @property
    def considered(self) -> int:
        """All nodes of the fleet."""
        ...

    @property
    def fit(self) -> int:
        """Nodes that could be chosen; 0 exactly when it does not fit."""
        ...

    @property
    def counts(self) -> Mapping[Code, int]:
        """Each rejected node charged to the first of its reasons; only codes that occur."""
        ...

    @property
    def rejected(self) -> Sequence[Rejection]:
        """By node name; a slice of it costs the rows of the slice."""
        ...

    @property
    def fabrics(self) -> Sequence[FabricCount]:
        """Every fabric of the fleet; none for a replica on one node."""
        ...


class Change(StrEnum):
    """What somebody could do so that it fits."""

    UNCORDON = "uncordon"
    REPAIR_GPU = "repair_gpu"
    END_PROCESS = "end_process"
    FREE_GPUS = "free_gpus"
    ADD_LABEL = "add_label"
    FREE_MEMORY = "free_memory"
    ADD_MEMORY = "add_memory"
    FREE_DISK = "free_disk"
    ADD_GPUS = "add_gpus"
    JOIN_FABRIC = "join_fabric"
    REPORT_FACTS = "report_facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change after which the replica would fit."""

    change: Change
    message: str
    node: NodeName | None = None
    fabric: FabricName | None = None
    amount: int | None = None


class Decision(Protocol):
    """The answer for one replica; what costs something is computed when read, as of then."""

    @property
    def model(self) -> ModelName:
        """Of which model."""
        ...

    @property
    def replica(self) -> int:
        """Its number, from 0."""
        ...

    @property
    def order(self) -> int:
        """From 1: in which order replicas were decided."""
        ...

    @property
    def outcome(self) -> Outcome:
        """Placed, kept, or neither."""
        ...

    @property
    def profile(self) -> ProfileName | None:
        """The profile used; `None` if none, or not known of what is kept."""
        ...

    @property
    def fabric(self) -> FabricName | None:
        """Of a replica on several nodes that was placed."""
        ...

    @property
    def shards(self) -> tuple[ShardPlacement, ...]:
        """By rank; none if unplaceable."""
        ...

    @property
    def why(self) -> str:
        """A sentence: what it won by, or what is nearest."""
        ...

    @property
    def tried(self) -> Sequence[Tried]:
        """By priority, down to the profile used; nothing if kept."""
        ...

    @property
    def would_fit_if(self) -> Sequence[Remedy]:
        """Smallest first, at most five; empty unless unplaceable."""
        ...
