"""The batch sizes that tuning chooses from, at each GPU count, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.batch import BatchSplit, candidate_splits, split_fixed
from batuta.backends.sim.goodput.throughput import Placement, pack
from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.prediction.step_model import Point, places_of
from batuta.prediction.step_time import Shapes


@dataclass(frozen=True, slots=True)
class SplitTable:
    """A row for each placement, a column for each candidate; rows are padded with their first candidate."""

    placements: tuple[Placement, ...]
    splits: tuple[tuple[BatchSplit, ...], ...]
    passes: FloatArray
    """Passes that do not synchronise."""
    scale: FloatArray
    """Total batch size over the smallest one."""
    shapes: Shapes
    places: dict[Point, list[int]]
    """Where each shape stands in the table, counted row by row."""
    rows: dict[Placement, int]

    def iteration_s(self, pass_s: FloatArray, step_s: FloatArray) -> FloatArray:
        seconds: FloatArray = step_s + pass_s * self.passes
        return seconds


def split_table(application: Application, placements: tuple[Placement, ...]) -> SplitTable:
    """The candidates of these placements. One where no batch size fits is left out."""
    found = [(placement, own) for placement in placements if (own := _candidates(application, placement))]
    width = max((len(own) for _, own in found), default=0)
    padded = [own + (own[0],) * (width - len(own)) for _, own in found]
    local = np.array([[split.local for split in own] for own in padded], np.float64)
    passes = np.array([[split.accumulation for split in own] for own in padded], np.float64)
    gpus: IntArray = np.array([[sum(placement)] for placement, _ in found])
    wide: BoolArray = np.array([[len(placement) > 1] for placement, _ in found])
    shape = local.shape
    shapes = Shapes(np.broadcast_to(gpus, shape).astype(np.float64), local, np.broadcast_to(wide, shape))
    return SplitTable(
        tuple(placement for placement, _ in found),
        tuple(own for _, own in found),
        passes,
        gpus * local * (passes + 1) / application.profile.init_batch,
        shapes,
        places_of(shapes),
        {placement: row for row, (placement, _) in enumerate(found)},
    )


def packed_table(application: Application, sizes: tuple[int, ...], gpus_per_node: int) -> SplitTable:
    return split_table(application, tuple(pack(n, gpus_per_node) for n in sizes))


def _candidates(application: Application, placement: Placement) -> tuple[BatchSplit, ...]:
    profile, gpus = application.profile, sum(placement)
    pinned = profile.rule.pinned_batch
    splits = [split_fixed(profile, pinned, gpus)] if pinned else candidate_splits(profile, gpus)
    # What does not fit into memory was never measured: that is a fact of the GPU, and everybody knows it.
    return tuple(split for split in splits if application.throughput.at(placement, split.local) is not None)
