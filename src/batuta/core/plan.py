"""The outcome of one cycle: commands for the backend, and for every job the reason for what it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.cluster import Placement
from batuta.core.job import JobId
from batuta.core.quota import Flavors
from batuta.core.reason import REPLICAS, Evidence, Reason


@dataclass(frozen=True, slots=True)
class _Give:
    job: JobId
    placement: Placement
    reason: Reason
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class _Take:
    job: JobId
    reason: Reason
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class Start(_Give):
    """Run a job that has no GPUs."""


@dataclass(frozen=True, slots=True)
class Resize(_Give):
    """Give a running job another number of GPUs."""


@dataclass(frozen=True, slots=True)
class Migrate(_Give):
    """Give a running job the same number of GPUs elsewhere."""


@dataclass(frozen=True, slots=True)
class Preempt(_Take):
    """Take all GPUs from a job; it keeps its progress and waits again."""


@dataclass(frozen=True, slots=True)
class Stop(_Take):
    """End a job for good, whether it has GPUs or not. It is over once the backend says so."""


Command: TypeAlias = Start | Resize | Migrate | Preempt | Stop


@dataclass(frozen=True, slots=True)
class Decision:
    """What one job gets, and why."""

    job: JobId
    gpus: int
    reason: Reason
    evidence: Evidence

    def __str__(self) -> str:
        return self.reason.sentence(self.evidence)


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """One decision for every job, kept as columns; reasons are worked out when they are read."""

    ids: Sequence[JobId]
    gpus: IntArray
    moving: BoolArray | None  # rows that were just starting or resizing; None when there were none
    asked: IntArray
    low: IntArray
    high: IntArray
    kind: IntArray | None  # the GPU type that each row competes for, -1 for none; None when there is only one
    capacity: tuple[int, ...]  # GPUs by type
    free: tuple[int, ...]  # GPUs by type that are left when the plan is carried out
    special: dict[int, tuple[Reason, Evidence]]
    """Rows whose reason does not follow from the columns, or needs numbers of its own."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Decision]:
        return (self.at(row) for row in range(len(self.ids)))

    def at(self, row: int) -> Decision:
        kind = 0 if self.kind is None else int(self.kind[row])
        gpus, low, asked = int(self.gpus[row]), int(self.low[row]), int(self.asked[row])
        free = self.free[kind] if kind >= 0 else 0
        numbers: dict[str, float] = {
            "gpus": gpus,
            # A policy that starts jobs at the size they asked for needs more than the minimum.
            "needs": asked if low <= free < asked else low,
            "asked": asked,
            "max": int(self.high[row]),
            "free": free,
            "capacity": self.capacity[kind] if kind >= 0 else 0,
        }
        reason, own = self.special.get(row) or (self._common(row, numbers, kind), ())
        if any(name == REPLICAS for name, _ in own):
            # What else there is of numbers counts GPUs.
            numbers.clear()
        numbers.update(own)
        return Decision(self.ids[row], gpus, reason, tuple(numbers.items()))

    def _common(self, row: int, numbers: dict[str, float], kind: int) -> Reason:
        """The reason of a row that nothing special happened to."""
        gpus = numbers["gpus"]
        if gpus >= numbers["max"]:
            return Reason.FULL_SIZE
        if gpus == 0:
            if kind < 0:
                return Reason.NO_ACCEPTED_TYPE
            if self.low[row] > numbers["capacity"]:
                return Reason.EXCEEDS_CLUSTER
            return Reason.HELD_BACK if numbers["needs"] <= numbers["free"] else Reason.WAITING_FOR_GPUS
        if self.moving is not None and self.moving[row]:
            return Reason.IN_TRANSITION
        return Reason.SHARES_WITH_OTHERS if gpus < numbers["asked"] else Reason.AT_ASKED_SIZE

    def of(self, job: JobId) -> Decision | None:
        """The decision on one job, None when it was not alive."""
        try:
            return self.at(self.ids.index(job))
        except ValueError:
            return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decisions) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next. It holds for one version of the World only; a stale plan is dropped."""

    world_version: int
    time_s: float
    policy: str
    commands: tuple[Command, ...]
    retiered: tuple[tuple[JobId, int], ...]  # jobs that change their queue level, with the new level
    decisions: Decisions
    flavors: tuple[tuple[JobId, Flavors], ...] = ()  # jobs that start, and the quota that they use
    found_idle: tuple[JobId, ...] = ()  # jobs that hold GPUs and were found not to use them; each is told once

    @property
    def empty(self) -> bool:
        return not self.commands and not self.retiered and not self.found_idle


_NONE: IntArray = np.zeros(0, dtype=np.int64)
_NO_DECISIONS = Decisions((), _NONE, None, _NONE, _NONE, _NONE, None, (), (), {})


def no_decisions() -> Decisions:
    """The decisions of a cycle without jobs, or of one whose reasons are not read."""
    return _NO_DECISIONS
