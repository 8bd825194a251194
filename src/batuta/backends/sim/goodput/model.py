"""A learned goodput model of one application, or of one job: step times, gradient noise, total progress.

The gradient noise is not the same at every batch size: with a large batch it is higher, so the noise at one
batch size is the less true of another, the further they are apart. It is therefore kept by batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.goodput.application import (
    Application,
    BatchSplit,
    GradientStatistics,
    candidate_splits,
    split_fixed,
)
from batuta.backends.sim.goodput.throughput import Placement, pack
from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.phases import Phases
from batuta.prediction.step_time import DEFAULT_SYNC_PRIOR, Point, Shapes, StepModel, SyncPrior, indices_of


class GradientNoise:
    """Noise by epoch (as far as any job has come) and by doublings of the smallest batch."""

    def __init__(self, largest_scale: float) -> None:
        octaves = max(round(math.log2(max(largest_scale, 1.0))), 0) + 1
        self._seen: FloatArray = np.empty((0, octaves))  # NaN where nothing was measured
        self._noise: FloatArray = np.empty((0, octaves))
        """The same, with the nearest measured value where nothing was measured."""
        self.version = 0  # grows with every change

    def __len__(self) -> int:
        """Epochs that were reached."""
        return len(self._noise)

    def note(self, epoch: int, scale: float, seen: GradientStatistics) -> None:
        """Adds what a job measured at a batch of `scale` times the smallest."""
        noise = noise_of(seen)
        octave = min(max(round(math.log2(scale)), 0), self._seen.shape[1] - 1)
        missing = epoch + 1 - len(self)
        if missing > 0:
            width = self._seen.shape[1]
            self._seen = np.concatenate((self._seen, np.full((missing, width), np.nan)))
            self._noise = np.concatenate((self._noise, np.full((missing, width), noise)))
        elif self._seen[epoch, octave] == noise:
            return
        self._seen[epoch, octave] = noise
        known = np.flatnonzero(np.isfinite(self._seen[epoch]))
        nearest: IntArray = np.abs(np.arange(self._seen.shape[1])[:, None] - known).argmin(axis=1)
        self._noise[epoch] = self._seen[epoch, known[nearest]]
        self.version += 1

    def gains(self, scale: FloatArray, epochs: slice = slice(None)) -> FloatArray:
        """Progress of one step at each scale, in steps of the smallest batch: a new first axis of epochs."""
        table = self._noise[epochs]
        most = table.shape[1] - 1
        low = np.clip(np.floor(np.log2(scale)).astype(np.int64), 0, most)
        part = np.clip(scale / 2.0**low - 1.0, 0.0, 1.0)
        noise = table[:, low] * (1.0 - part) + table[:, np.minimum(low + 1, most)] * part
        return gains_of(noise, scale)


def noise_of(seen: GradientStatistics) -> float:
    return seen.var / max(seen.sqr, 1e-30)


def gains_of(noise: FloatArray | float, scale: FloatArray) -> FloatArray:
    gains: FloatArray = (noise + 1.0) / (noise / scale + 1.0)
    return gains


@dataclass(frozen=True, slots=True)
class SplitTable:
    """A row for each placement, a column for each candidate; rows are padded with their first candidate."""

    placements: tuple[Placement, ...]
    splits: tuple[tuple[BatchSplit, ...], ...]
    passes: FloatArray  # passes that do not synchronise
    scale: FloatArray  # total batch size over the smallest one
    shapes: Shapes
    places: dict[Point, list[int]]  # where each shape stands in the table, counted row by row
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
        indices_of(shapes),
        {placement: row for row, (placement, _) in enumerate(found)},
    )


def _candidates(application: Application, placement: Placement) -> tuple[BatchSplit, ...]:
    profile, gpus = application.profile, sum(placement)
    pinned = profile.rule.pinned_batch
    splits = [split_fixed(profile, pinned, gpus)] if pinned else candidate_splits(profile, gpus)
    # What does not fit into GPU memory was never measured; every estimator may know that.
    return tuple(split for split in splits if application.throughput.at(placement, split.local) is not None)


FIRST_GUESS_S = 3600.0  # estimated run time on one GPU of a job whose total is not known yet


@dataclass(slots=True)
class Totals:
    """Progress of the jobs that ended, and the most that any job has made."""

    _ended: list[float] = field(default_factory=list)
    _furthest: float = 0.0

    def advance(self, progress: float) -> None:
        self._furthest = max(self._furthest, progress)

    def end(self, progress: float) -> None:
        self.advance(progress)
        self._ended.append(progress)

    def guess(self, at: float, per_s: float) -> float:
        """Where a job ends that is at `at`; `per_s` is its progress on one GPU.

        The mean of the jobs that ended further on; without any, twice the furthest progress, so that the job
        in front counts as the shortest.
        """
        longer = [end for end in self._ended if end > at]
        return float(np.mean(longer)) if longer else max(2 * self._furthest, FIRST_GUESS_S * per_s)


BEYOND = 1e9  # progress after the last epoch that was reached: more than any job makes


class Exploration(NamedTuple):
    """How far beyond measured sizes a job may go, and the expected costs there."""

    first: int = 4  # the most GPUs of a job that was never measured
    growth: int = 4  # after that, the factor over the most GPUs that were tried
    sync: float = DEFAULT_SYNC_PRIOR.sync
    across: float = DEFAULT_SYNC_PRIOR.across  # see `SyncPrior`


class GoodputModel:
    """Learned from what ran: step times are fitted, gradient noise is what was measured."""

    def __init__(
        self,
        application: Application,
        sizes: tuple[int, ...],
        gpus_per_node: int,
        explores: Exploration = Exploration(),  # noqa: B008  (immutable)
        shared: bool = True,
    ) -> None:
        self.application = application
        self._explores = explores
        self.gpus_per_node = gpus_per_node
        self.model = StepModel(SyncPrior(explores.sync, explores.across))
        # A job that learns for itself knows its gradient at its own batch size only.
        scales = application.profile.max_batch / application.profile.init_batch if shared else 1.0
        self.gradients = GradientNoise(scales)
        self.totals = Totals()
        self._sizes = sizes
        self._phases: Phases | None = None
        self._phases_of: tuple[int, int] = (-1, -1)
        self._tuned: dict[Placement, tuple[tuple[BatchSplit, ...], FloatArray, FloatArray]] = {}
        self._tuned_of = -1
        self._tuned_table: tuple[SplitTable, FloatArray, int] | None = None

    def observe(self, placement: Placement, split: BatchSplit, epoch: int) -> None:
        """Adds what a job measured with this placement and split."""
        gpus = sum(placement)
        time = self.application.throughput.at(placement, split.local)
        assert time is not None, "it ran"
        point = Point(len(placement) > 1, gpus, float(split.local))
        self.model.add(point, time.step_s - time.sync_s, time.step_s)
        batch = split.total(gpus)
        scale = batch / self.application.profile.init_batch
        self.gradients.note(epoch, scale, self.application.efficiency.statistics(batch, epoch))

    @property
    def max_gpus(self) -> int:
        """The most GPUs that it may use: not far beyond what was tried."""
        return max(self._explores.first, self._explores.growth * self.model.largest)

    def best_split(self, placement: Placement, epoch: int, now: GradientStatistics) -> BatchSplit:
        """The batch size with the largest predicted goodput; the smallest when nothing was measured.

        `now` is what the job sees of its gradient: all that is known where no job has reached its epoch.
        """
        if not self.model:
            return _table_of(self.application, placement).splits[0][0]
        splits, scale, seconds = self._row(placement)
        if epoch < len(self.gradients):
            gains = self.gradients.gains(scale, slice(epoch, epoch + 1))[0]
        else:
            gains = gains_of(noise_of(now), scale)
        return splits[int((gains / seconds).argmax())]

    def _row(self, placement: Placement) -> tuple[tuple[BatchSplit, ...], FloatArray, FloatArray]:
        """The candidates at a placement, with their scale and the predicted seconds of an iteration."""
        if self._tuned_of != self.model.version:
            self._tuned.clear()
            self._tuned_of = self.model.version
        found = self._tuned.get(placement)
        if found is None:
            table, seconds = self._packed_table()
            row = table.rows.get(placement)
            if row is None:
                table, row = _table_of(self.application, placement), 0
                seconds = self._iteration_s(table)
            splits = table.splits[row]
            known = slice(len(splits))  # without the padding
            found = self._tuned[placement] = splits, table.scale[row, known], seconds[row, known]
        return found

    def _packed_table(self) -> tuple[SplitTable, FloatArray]:
        """All sizes on as few nodes as can be, with the predicted seconds of an iteration."""
        if self._tuned_table is None or self._tuned_table[2] != self.model.version:
            sizes = [n for n in self._sizes if n <= self.max_gpus]
            table = _packed(self.application, sizes, self.gpus_per_node)
            self._tuned_table = table, self._iteration_s(table), self.model.version
        return self._tuned_table[:2]

    def _iteration_s(self, table: SplitTable) -> FloatArray:
        return table.iteration_s(*self.model.times_s(table.shapes, table.places))

    def phases(self) -> Phases | None:
        """Goodput by size in the epochs that were reached; the last has no end. None: not measured."""
        if not self.model:
            return None
        version = self.model.version, self.gradients.version
        if self._phases is None or self._phases_of != version:
            table, seconds = self._packed_table()
            goodput = (self.gradients.gains(table.scale) / seconds).max(axis=2)
            limits = self.application.efficiency.thresholds[: len(self.gradients)]
            marks = np.array((*limits, limits[-1] + BEYOND))
            self._phases = phases_at([sum(own) for own in table.placements], goodput, marks)
            self._phases_of = version
        return self._phases


_tables: dict[tuple[str, tuple[Placement, ...]], SplitTable] = {}
"""By the digest of a profile and placements, so that runs of one process share them."""


def _table_of(application: Application, *placements: Placement) -> SplitTable:
    key = (application.profile.digest, placements)
    if key not in _tables:
        _tables[key] = split_table(application, placements)
    return _tables[key]


def _packed(application: Application, sizes: Iterable[int], gpus_per_node: int) -> SplitTable:
    return _table_of(application, *(pack(n, gpus_per_node) for n in sizes))


def phases_at(sizes: list[int], goodput: FloatArray, marks: FloatArray) -> Phases:
    """Phases from goodput (phases, sizes); sizes between are on the line between their neighbours."""
    n = np.arange(sizes[-1] + 1)
    high = np.clip(np.searchsorted(sizes, n), 1, max(len(sizes) - 1, 1))
    if len(sizes) == 1:
        dense = goodput[:, :1] * (n > 0)
    else:
        at = np.array(sizes, np.float64)
        part = np.clip((n - at[high - 1]) / (at[high] - at[high - 1]), 0.0, 1.0)
        dense = goodput[:, high - 1] * (1 - part) + goodput[:, high] * part
        dense[:, 0] = 0.0
    return Phases(marks, dense)


def true_phases(application: Application, sizes: tuple[int, ...], gpus_per_node: int) -> Phases:
    """The true goodput of tuned batch sizes on packed nodes, epoch by epoch."""
    placements = _packed(application, sizes, gpus_per_node).placements
    pinned = application.profile.rule.pinned_batch
    plans = [application.fixed_plan(own, pinned) if pinned else application.tuned_plan(own) for own in placements]
    epochs = range(application.efficiency.epochs)
    goodput = np.array([[plan.goodputs[epoch] for plan in plans] for epoch in epochs])
    return phases_at([sum(own) for own in placements], goodput, np.array(application.efficiency.thresholds))
