"""Gavel: time on every GPU type is divided so that the job with the least gets as much as possible.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI '20:
max-min fairness over types (section 4.1), solved as a linear programme, and its realisation in rounds by
priorities (section 5). A job runs at its own size or not at all. What it has received is remembered by the
World as work done, not as time by type: who was on a slow type is behind, and chooses first. A round is a
lease: a job that just got its GPUs keeps them that long, also where decisions follow events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.policy import PolicyTraits
from batuta.core.view import Choice, PoolView, TypedView
from batuta.policies.order import admit_in_order, leased
from batuta.policies.type_choice import one_type

_NOISE = 1e-6  # a part of time below this is rounding
_TIE = 1e-4  # weight of the sum of all jobs beside the least one: what the least cannot use goes to the others


@dataclass(frozen=True, slots=True)
class Gavel:
    """The size that each job asked for, of the types that the programme gives it, the most deprived first."""

    name: str = "gavel"
    round_s: float = 360.0  # so long a job keeps the GPUs that it got
    traits: ClassVar[PolicyTraits] = PolicyTraits(typed=True)

    def allocate(self, view: PoolView) -> IntArray:
        return self.allocate_types(one_type(view)).gpus

    def allocate_types(self, view: TypedView) -> Choice:
        size = view.jobs.size
        able: BoolArray = (view.speed > 0) & (size[:, None] <= np.minimum(view.most, view.capacity))
        speed = np.where(able, view.speed, 0.0) * view.jobs.speed.at(size)[:, None]
        rows = np.flatnonzero((speed > 0).any(axis=1))
        share = np.zeros(speed.shape)
        if rows.size:
            share[rows] = _shares(speed[rows], size[rows], view.capacity)
        return self._serve(view, speed, share)

    def _serve(self, view: TypedView, speed: FloatArray, share: FloatArray) -> Choice:
        """Leases first, then pairs of a job and a type by priority, then jobs that can use what is left."""
        gpus, left = _keep(view, leased(view.jobs, self.round_s), view.capacity.copy())
        kinds = np.where(gpus > 0, view.gpu_type, 0)
        row, kind = np.nonzero((share > 0) & (gpus == 0)[:, None])
        priority = share[row, kind] / _received(view.jobs, (share * speed).sum(axis=1), self.round_s)[row]
        # Equal priorities: where the job is, then where it is faster; `lexsort` keeps row order after that.
        order = np.lexsort((-speed[row, kind], kind != view.gpu_type[row], -priority))
        _give(row[order], kind[order], view.jobs.size, gpus, kinds, left)
        row, kind = np.nonzero((speed > 0) & (gpus == 0)[:, None])
        order = np.lexsort((-speed[row, kind], row))
        _give(row[order], kind[order], view.jobs.size, gpus, kinds, left)
        return Choice(gpus, kinds)


def _shares(speed: FloatArray, size: IntArray, capacity: IntArray) -> FloatArray:
    """The part of its time that each job should have on each type.

    What a type is worth to a job is its speed over that with an equal part of every type that it can use, to
    a hundredth. Jobs that agree on that are one unknown: traces of thousands have a few dozen of those.
    """
    if len(capacity) == 1:
        return np.full((len(size), 1), min(1.0, float(capacity[0]) / float(size.sum())))
    usable = speed > 0
    equal = (speed * capacity).sum(axis=1) / np.maximum((usable * capacity).sum(axis=1), 1)
    worth = np.where(usable, np.maximum(np.round(speed / equal[:, None], 2), 0.01), 0.0)
    groups, which, count = np.unique(np.column_stack((worth, size)), axis=0, return_inverse=True, return_counts=True)
    sizes = np.asarray(groups[:, -1], dtype=np.float64)
    parts = _solve(groups[:, :-1] * sizes[:, None], sizes, count, capacity)
    return np.where(parts > _NOISE, parts, 0.0)[which.reshape(-1)]


def _solve(worth: FloatArray, sizes: FloatArray, count: IntArray, capacity: IntArray) -> FloatArray:
    """Maximises the least worth over groups of equal jobs; unknowns are the parts of time, and the least."""
    # 0.3 s of CPU time that clusters of one type never need.
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
    from scipy.sparse import csc_array  # noqa: PLC0415

    groups, types = worth.shape
    cell, each = np.arange(groups * types), np.arange(groups)
    group, kind = cell // types, cell % types
    least = np.full(groups, len(cell))
    # No job has more than all of its time; a type has so many GPUs; the least is at most any job's worth.
    rows = np.concatenate((group, groups + kind, groups + types + group, groups + types + each))
    columns = np.concatenate((cell, cell, cell, least))
    values = np.concatenate((np.ones(len(cell)), (sizes * count)[group], -worth.ravel(), np.ones(groups)))
    limits = np.concatenate((np.ones(groups), np.asarray(capacity, dtype=np.float64), np.zeros(groups)))
    table = csc_array((values, (rows, columns)), shape=(len(limits), len(cell) + 1))
    total = (worth * count[:, None]).ravel() / float(count.sum())
    found = milp(
        np.append(-_TIE * total, -1.0),
        bounds=Bounds(0, np.append((worth.ravel() > 0).astype(np.float64), np.inf)),
        constraints=LinearConstraint(table, -np.inf, limits),
    )
    if found.x is None:
        return np.where(worth > 0, 1.0 / types, 0.0)
    return found.x[:-1].reshape(groups, types)


def _received(jobs: PoolView, should: FloatArray, round_s: float) -> FloatArray:
    """What each job has had over what it should have had since it came; 1 for one that just came."""
    age_s = np.maximum(jobs.now_s - jobs.submit_s, 0.0)
    done_s = np.zeros(len(jobs)) if jobs.done_s is None else jobs.done_s
    return (done_s + should * round_s) / np.maximum(should * (age_s + round_s), 1e-12)


def _keep(view: TypedView, kept: IntArray, left: IntArray) -> tuple[IntArray, IntArray]:
    """What is kept of the type that each has, and what of each type is left then."""
    gpus = np.zeros_like(kept)
    for kind in range(len(left)):
        own = np.flatnonzero((view.gpu_type == kind) & (kept > 0) & (kept <= view.most[:, kind]))
        gpus[own] = admit_in_order(kept[own], int(left[kind]))
        left[kind] -= int(gpus[own].sum())
    return gpus, left


def _give(rows: IntArray, kinds: IntArray, size: IntArray, gpus: IntArray, gpu_type: IntArray, left: IntArray) -> None:
    """Goes through pairs of a job and a type; a job without GPUs takes its size if there is room."""
    sizes, room = size.tolist(), left.tolist()
    for row, kind in zip(rows.tolist(), kinds.tolist(), strict=True):
        if not gpus[row] and sizes[row] <= room[kind]:
            gpus[row], gpu_type[row] = sizes[row], kind
            room[kind] -= sizes[row]
    left[:] = room
