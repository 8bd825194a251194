"""The jobs of a World as a policy sees them. A column is cut out when the policy first asks for it.

Hundreds of small pools are shown to a policy one after the other. Columns are made once for all of them,
and `part_of` cuts the rows of one pool out without a copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from batuta.core.arrays import BoolArray, FloatArray, IntArray, frozen
from batuta.core.curve import Curves, LegalSizes
from batuta.core.eligibility import held
from batuta.core.job import JobId
from batuta.core.phases import SharedOutlook, shared_outlooks
from batuta.core.view import PoolView
from batuta.core.world import World

_Scalar = TypeVar("_Scalar", bound=np.generic)
_set = object.__setattr__  # fills a slot of a frozen value, as its own constructor does


def pool_view(
    world: World, now_s: float, rows: IntArray | None, capacity: int, cap: IntArray | None, kind: int | None = None
) -> PoolView:
    """These rows, or all when `rows` is None; `cap` lowers what a row may have, `kind` is the GPU type."""
    view = WorldView.__new__(WorldView)
    _set(view, "now_s", now_s)
    _set(view, "capacity", max(capacity, 0))
    _set(view, "source", (world, rows, cap, kind))
    return view


class WorldView(PoolView):
    """A view whose slots are empty at first. It holds for as long as the World does not change."""

    __slots__ = ("source",)

    source: tuple[World, IntArray | None, IntArray | None, int | None]

    def __len__(self) -> int:
        return len(self.gpus)

    def __getattr__(self, name: str) -> Any:
        """Called for an empty slot only."""
        make = _MADE.get(name)
        if make is None and name not in PoolView.__slots__:
            raise AttributeError(name)
        value = make(self) if make else self.cut(getattr(self.source[0].jobs, name))
        _set(self, name, value)
        return value

    def in_tiers(self, tier: IntArray, tier_since_s: FloatArray) -> PoolView:
        """Cuts out only what is read."""
        view = pool_view(self.source[0], self.now_s, self.source[1], self.capacity, *self.source[2:])
        _set(view, "tier", tier)
        _set(view, "tier_since_s", tier_since_s)
        return view

    def cut(self, column: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """The rows of this view out of a column of the job table."""
        rows = self.source[1]
        return frozen(column if rows is None else column[rows])


def _ids(view: WorldView) -> list[JobId]:
    world, rows, _, _ = view.source
    ids = world.jobs.ids
    return ids if rows is None else [ids[row] for row in rows.tolist()]


def _sizes(view: WorldView) -> LegalSizes:
    """What each row may have; a cap lowers `max` to the largest legal size within it."""
    world, rows, cap, _ = view.source
    jobs, cut = world.jobs, view.cut
    if rows is None:
        sizes = jobs.legal_sizes()
    else:
        low, high, step, listed = view.min, cut(jobs.max), cut(jobs.step), cut(jobs.size_set)
        regular, rigid = not jobs.irregular, not jobs.elastic
        sizes = LegalSizes(low, high, step, listed, jobs.size_sets.matrix, regular, rigid)
    if cap is None:
        return sizes
    return replace(sizes, max=sizes.floor(np.minimum(cap if rows is None else cap[rows], sizes.max)))


def _size(view: WorldView) -> IntArray:
    size = view.cut(view.source[0].jobs.size)
    return size if view.source[2] is None else np.minimum(size, view.sizes.max)


def _speed(view: WorldView) -> Curves:
    world, rows, _, _ = view.source
    speed = world.jobs.speed()
    return speed if rows is None else speed.subset(rows)


def _remaining_s(view: WorldView) -> FloatArray:
    """What is left now. The table knows what was left when the job last changed."""
    world, rows, _, kind = view.source
    left_s = np.maximum(view.cut(world.jobs.remaining_s) - view.cut(world.jobs.rate) * _elapsed_s(view), 0.0)
    return left_s if kind is None else left_s / _relative_speed(world, rows, kind)


def _done_s(view: WorldView) -> FloatArray:
    world, rows, _, kind = view.source
    done_s = view.cut(world.jobs.done_s) + view.cut(world.jobs.rate) * _elapsed_s(view)
    return done_s if kind is None else done_s / _relative_speed(world, rows, kind)


def _crowd(view: WorldView) -> FloatArray:
    world = view.source[0]
    living = max(world.jobs.n, 1)
    met_s = world.jobs.crowd_s + living * (view.now_s - world.now_s) - view.cut(world.jobs.crowd_before_s)
    age_s = view.now_s - view.submit_s
    return np.where(age_s > 0, met_s / np.maximum(age_s, 1e-9) / living, 1.0)


def _elapsed_s(view: WorldView) -> FloatArray:
    return view.now_s - view.cut(view.source[0].jobs.anchor_s)


def _relative_speed(world: World, rows: IntArray | None, kind: int) -> FloatArray:
    jobs, name = world.jobs.jobs, world.nodes.types[kind]
    chosen = jobs if rows is None else [jobs[row] for row in rows]
    return np.array([dict(job.gpu_types).get(name, 1.0) if job.gpu_types else 1.0 for job in chosen])


def _restart_left_s(view: WorldView) -> FloatArray | None:
    """What is left of the predicted restart time; longer than predicted counts as just over."""
    world, rows, _, _ = view.source
    moving = world.jobs.in_motion()
    if moving is None:
        return None
    begun_s = np.fmax(view.last_start_s, view.last_resize_s)
    left_s = np.clip(view.restart_s - (view.now_s - begun_s), 0.0, view.restart_s)
    return np.where(moving if rows is None else moving[rows], left_s, 0.0)


def _held(view: WorldView) -> BoolArray | None:
    world, rows, _, _ = view.source
    found = held(world, view.now_s)
    if rows is not None:
        found = found[rows]
    return found if found.any() else None


def _node_gpus(view: WorldView) -> int:
    """The width that most GPUs of this type are in; the smaller one on a tie."""
    world, _, _, kind = view.source
    nodes = world.nodes
    own = nodes.by_type[kind or 0] if nodes.by_type else 0
    widths = {gpus: (members & own).bit_count() * gpus for gpus, members in nodes.by_size.items()}
    return max(sorted(widths), key=widths.__getitem__, default=0)


def _outlooks(view: WorldView) -> tuple[SharedOutlook, ...]:
    known = view.source[0].jobs.outlooks
    return shared_outlooks(view.ids, known) if known else ()


_MADE = {
    "ids": _ids,
    "gpus": lambda view: view.cut(view.source[0].jobs.held),
    "sizes": _sizes,
    "max": lambda view: view.cut(view.source[0].jobs.max) if view.source[2] is None else view.sizes.max,
    "size": _size,
    "speed": _speed,
    "remaining_s": _remaining_s,
    "attained_gpu_s": lambda view: view.cut(view.source[0].jobs.attained_gpu_s) + view.gpus * _elapsed_s(view),
    "service_gpu_s": lambda view: view.cut(view.source[0].jobs.service_gpu_s) + view.gpus * _elapsed_s(view),
    "done_s": _done_s,
    "crowd": _crowd,
    "restart_left_s": _restart_left_s,
    "held": _held,
    "node_gpus": _node_gpus,
    "outlooks": _outlooks,
}


def part_of(whole: PoolView, part: slice, capacity: int) -> PoolView:
    """These rows of a view of some jobs of a World; they compete for a capacity of their own."""
    assert isinstance(whole, WorldView)
    world, rows, cap, kind = whole.source
    assert rows is not None
    view = PartView.__new__(PartView)
    _set(view, "now_s", whole.now_s)
    _set(view, "capacity", max(capacity, 0))
    _set(view, "source", (world, rows[part], cap, kind))
    _set(view, "whole", (whole, part))
    return view


class PartView(WorldView):
    """As a view of these rows alone. It holds for as long as the World does not change."""

    __slots__ = ("whole",)

    whole: tuple[WorldView, slice]

    def __getattr__(self, name: str) -> Any:
        """Called for an empty slot only."""
        whole, part = self.whole
        column = getattr(whole, name)
        if isinstance(column, np.ndarray):
            value: Any = column[part]
        elif isinstance(column, LegalSizes):
            low, high, step, listed = (column.min[part], column.max[part], column.step[part], column.set_of[part])
            value = LegalSizes(low, high, step, listed, column.sets, column.regular, column.rigid)
        elif isinstance(column, Curves):
            value = Curves(column.flat, column.start[part], column.last[part])
        else:
            return super().__getattr__(name)
        _set(self, name, value)
        return value
