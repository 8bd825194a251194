"""The port between the decision and quota: who may run at all, and up to what size."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from batuta.core.arrays import IntArray
from batuta.core.job import JobId
from batuta.core.node_table import NodeRequirements
from batuta.core.quota import Flavors
from batuta.core.reason import Evidence, Reason

if TYPE_CHECKING:
    from batuta.core.world import World

NO_ROWS: frozenset[int] = frozenset()


class Budget(NamedTuple):
    """Rows that may not all have what each of them alone may have, and what they may have together."""

    rows: IntArray
    gpus: int
    beside: tuple[tuple[IntArray, int], ...] = ()
    """Other limits: what each row takes for a GPU, and what all of them may take."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """For every row of the job table the largest size that it may have; 0 keeps it waiting."""

    cap: IntArray | None = None  # None: every job may have its `max`
    refused: dict[int, tuple[Reason, Evidence]] | None = None
    """Why rows with cap 0 wait, and what limits rows whose cap is below their `max`."""
    gpu_type: IntArray | None = None  # the GPU type whose quota each row uses; None leaves the choice to the next step
    budgets: tuple[Budget, ...] = ()
    wishes: Mapping[int, NodeRequirements] = field(default_factory=dict)
    """Rows whose quota is good for some nodes only: what they want of nodes, in place of their own wishes."""
    flavors: Mapping[int, Flavors] = field(default_factory=dict)
    """Rows that may start now, and the quota that they would use."""
    losers: Mapping[int, Reason] = field(default_factory=dict)
    """Rows that have GPUs and must give all of them up, and why."""
    idle: Mapping[int, tuple[Reason, Evidence]] = field(default_factory=dict)
    """Rows that leave their GPUs idle, or did so until a short while ago."""
    found_idle: tuple[JobId, ...] = ()  # those of which that is news
    contested: frozenset[int] = frozenset()
    """Rows that may start now at the cost of others, who lose or wait. If one of them finds no place, the
    others should have had its quota."""


class Admission(Protocol):
    """Says who may run. It must not look at what is free: that is the placer's business."""

    def admit(self, world: World, now_s: float, without: Set[int] = NO_ROWS) -> Admitted:
        """`without` are rows for which there is no place now: they get no quota."""
        ...


class AdmitAll:
    """Admits every job up to its `max`."""

    def admit(self, world: World, now_s: float, without: Set[int] = NO_ROWS) -> Admitted:
        return Admitted()
