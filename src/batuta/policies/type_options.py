"""What each job could have: every pair of a GPU type and a legal size, one after the other in flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray, frozen
from batuta.core.typed_view import TypedView
from batuta.core.view import PoolView
from batuta.policies.step_list import list_steps


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """Options by row, then by type, then by size."""

    row: IntArray
    kind: IntArray
    gpus: IntArray
    speed: FloatArray
    """Relative to one GPU of the reference type."""

    def __len__(self) -> int:
        return len(self.row)

    def keep(self, wanted: BoolArray) -> TypeOptions:
        return TypeOptions(self.row[wanted], self.kind[wanted], self.gpus[wanted], self.speed[wanted])

    def held(self, view: TypedView) -> BoolArray:
        """Which option of each job is what it has."""
        found: BoolArray = (self.gpus == view.jobs.gpus[self.row]) & (self.kind == view.gpu_type[self.row])
        return found


def one_type(view: PoolView) -> TypedView:
    """A pool of one GPU type, seen as several types would be."""
    rows = len(view)
    return TypedView(
        jobs=view,
        types=("",),
        capacity=frozen(np.array([view.capacity], dtype=np.int64)),
        speed=frozen(np.ones((rows, 1))),
        most=frozen(view.max.reshape(rows, 1)),
        gpu_type=frozen(np.where(view.gpus > 0, 0, -1)),
        node_gpus=(view.node_gpus,),
    )


def list_type_options(view: TypedView, rows: IntArray | None = None, least: float = 0.0) -> TypeOptions:
    """The legal sizes within what is there, of every type that a job may have; of no speed at all, none.

    `least` is the speed that a job is thought to have at any size, whatever its curve says.
    """
    jobs, parts = view.jobs, list[TypeOptions]()
    for kind, capacity in enumerate(view.capacity.tolist()):
        able = view.speed[:, kind] > 0
        own = np.flatnonzero(able) if rows is None else rows[able[rows]]
        steps = list_steps(jobs, own, np.zeros(len(own), dtype=np.int64), capacity)
        found = TypeOptions(
            steps.row,
            np.full(len(steps.row), kind, dtype=np.int64),
            steps.after,
            np.maximum(steps.fast, least) * view.speed[steps.row, kind],
        )
        parts.append(found.keep((found.speed > 0) & (found.gpus <= view.most[found.row, kind])))
    if len(parts) == 1:
        return parts[0]
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in TypeOptions.__slots__)
    row, kinds, gpus, speed = columns
    order = np.lexsort((gpus, kinds, row))
    return TypeOptions(row[order], kinds[order], gpus[order], speed[order])


def usual_sizes(view: TypedView, options: TypeOptions) -> TypeOptions:
    """Without odd sizes: powers of two within a node, whole nodes beyond; what a job has, and `min`, stay."""
    if not len(options):
        return options
    width = np.array(view.node_gpus, dtype=np.int64)[options.kind]
    size = options.gpus
    usual = ((size & (size - 1)) == 0) & (size <= width)
    usual |= (width > 0) & (size % np.maximum(width, 1) == 0)
    usual |= (width == 0) | (size == view.jobs.min[options.row]) | options.held(view)
    return options.keep(usual)
