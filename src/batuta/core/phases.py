"""How a job's speed will change over the rest of its life: phases with work, and a speed at each size.

A speed curve says how fast a job is on average until its end. Training that can use larger batches later
scales better later; a policy that plans ahead wants to know when. Thousands of jobs of one application
share the same phases: a job only adds where it ends. Where it is now follows from the seconds it has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import FloatArray, IntArray, frozen
from batuta.core.job import JobId


class Phases:
    """Phase k goes from `marks[k]` to `marks[k + 1]`, in a unit of the application's own.

    `per_s[k, n]` is how much of it n GPUs do in a second; beyond the end the last value holds. A value that
    never changes; a class of its own, because it is made often and holds arrays.
    """

    __slots__ = ("marks", "per_s", "spent_s")

    def __init__(self, marks: FloatArray, per_s: FloatArray) -> None:
        if len(marks) < 2 or per_s.ndim != 2 or len(per_s) != len(marks) - 1 or per_s.shape[1] < 2:
            raise ValueError("an outlook needs a speed at 0 and 1 GPUs for every phase between two marks")
        if not (np.isfinite(marks).all() and (marks[1:] > marks[:-1]).all()):
            raise ValueError("the marks of an outlook must be finite and ascend")
        if not ((per_s >= 0).all() and (per_s < np.inf).all() and (per_s[:, 1] > 0).all()):
            raise ValueError("the speeds of an outlook must be finite and ≥ 0, with one GPU > 0")
        self.marks, self.per_s = frozen(marks), frozen(per_s)
        with np.errstate(divide="ignore"):
            seconds = np.diff(marks)[:, None] / per_s
        seconds[:, 0] = 0.0  # not read; infinity would only spoil sums
        table = np.zeros((len(marks), per_s.shape[1]))
        np.cumsum(seconds, axis=0, out=table[1:])
        self.spent_s = frozen(table)  # `[k, n]`: seconds from the first mark to mark k with n GPUs

    @property
    def most_gpus(self) -> int:
        return len(self.spent_s[0]) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Phases):
            return NotImplemented
        return self is other or (np.array_equal(self.marks, other.marks) and np.array_equal(self.per_s, other.per_s))

    def __hash__(self) -> int:
        return hash((len(self.marks), float(self.marks[-1])))

    def __repr__(self) -> str:
        return f"Phases(marks={self.marks.tolist()}, per_s={self.per_s.tolist()})"


@dataclass(frozen=True, slots=True)
class Outlook:
    """The phases of an application, and where in them this job ends."""

    phases: Phases
    end: float


@dataclass(frozen=True, slots=True)
class SharedOutlook:
    """Jobs that share their phases. Sizes are matrices: a row for each of these jobs."""

    rows: IntArray  # which rows of the view these are
    phases: Phases
    ends: FloatArray

    def left_s(self, remaining_s: FloatArray, sizes: IntArray) -> FloatArray:
        """Seconds to the end at each size, of jobs with so many seconds left on one GPU."""
        return self._until_end(self.at(remaining_s), sizes)

    def left_after_s(self, remaining_s: FloatArray, sizes: IntArray, seconds: FloatArray, then: IntArray) -> FloatArray:
        """Seconds to the end with `then` GPUs, after running for `seconds` at each size first."""
        table, marks, at = self.phases.spent_s, self.phases.marks, self.at(remaining_s)
        columns = np.minimum(sizes, self.phases.most_gpus)
        goal = self._spent(at, columns) + seconds
        reached = np.empty(goal.shape)
        for n in np.unique(columns).tolist():
            here = columns == n
            reached[here] = np.interp(goal[here], table[:, n], marks) if np.isfinite(table[-1, n]) else 0.0
        reached = np.clip(reached, at[:, None], self.ends[:, None])
        columns = np.minimum(then, self.phases.most_gpus)[:, None]
        whole = self._spent(np.broadcast_to(self.ends, at.shape), columns)
        return np.maximum(whole - self._spent_at(reached, columns), 0.0)

    def at(self, remaining_s: FloatArray) -> FloatArray:
        """Where each job is, in the unit of the marks."""
        one, marks = self.phases.spent_s[:, 1], self.phases.marks
        found: FloatArray = np.interp(np.interp(self.ends, marks, one) - remaining_s, one, marks)
        return found

    def _phase(self, at: FloatArray) -> IntArray:
        marks = self.phases.marks
        return np.clip(np.searchsorted(marks, at, side="right") - 1, 0, len(marks) - 2)

    def _until_end(self, at: FloatArray, sizes: IntArray) -> FloatArray:
        columns = np.minimum(sizes, self.phases.most_gpus)
        with np.errstate(invalid="ignore"):
            left = self._spent(self.ends, columns) - self._spent(at, columns)
        return np.where((sizes > 0) & np.isfinite(left), np.maximum(left, 0.0), np.inf)

    def _spent(self, at: FloatArray, columns: IntArray) -> FloatArray:
        """Seconds from the first mark to where each job is, one row per job."""
        return self._spent_at(at[:, None], columns)

    def _spent_at(self, at: FloatArray, columns: IntArray) -> FloatArray:
        table, marks, k = self.phases.spent_s, self.phases.marks, self._phase(at)
        part = (at - marks[k]) / (marks[k + 1] - marks[k])
        low = table[k, columns]
        with np.errstate(invalid="ignore"):
            spent: FloatArray = low + part * (table[k + 1, columns] - low)
        return spent


def shared_outlooks(ids: Sequence[JobId], known: Mapping[JobId, Outlook]) -> tuple[SharedOutlook, ...]:
    """The rows that have an outlook, together with those of the same phases."""
    # One and the same object, not equal ones: to compare all numbers would take longer than to use them.
    groups: dict[int, tuple[Phases, list[int], list[float]]] = {}
    if known:
        for row, job in enumerate(ids):
            outlook = known.get(job)
            if outlook is not None:
                _, rows, ends = groups.setdefault(id(outlook.phases), (outlook.phases, [], []))
                rows.append(row)
                ends.append(outlook.end)
    return tuple(
        SharedOutlook(np.array(rows, np.int64), phases, np.array(ends)) for phases, rows, ends in groups.values()
    )
