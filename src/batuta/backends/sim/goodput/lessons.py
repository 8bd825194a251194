"""What a scheduler has learned of one application, or of one job: step times, gradients, how far it goes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.batch import BatchSplit
from batuta.backends.sim.goodput.efficiency import GradientStatistics
from batuta.backends.sim.goodput.gradients import SeenGradients, gains_of, noise_of
from batuta.backends.sim.goodput.split_table import SplitTable, packed_table, split_table
from batuta.backends.sim.goodput.throughput import Placement
from batuta.backends.sim.goodput.totals import Totals
from batuta.core.arrays import FloatArray
from batuta.core.outlook import Phases
from batuta.prediction.step_fit import USUAL, Expectation
from batuta.prediction.step_model import Point, StepModel

BEYOND = 1e9
"""Progress after the last epoch that was reached: more than any job makes."""


class Exploration(NamedTuple):
    """How far beyond what was tried a job may go, and what is expected there."""

    first: int = 4
    """The most GPUs of a job that was never measured."""
    growth: int = 4
    """Then so many times the most that were tried."""
    sync: float = USUAL.sync
    across: float = USUAL.across
    """See `Expectation`."""


class Lessons:
    """Learned from what ran. Step times come from a fit, gradients are those that were seen."""

    __slots__ = (
        "_explores",
        "_phases",
        "_phases_of",
        "_sizes",
        "_tuned",
        "_tuned_of",
        "_tuned_table",
        "application",
        "gpus_per_node",
        "gradients",
        "model",
        "totals",
    )

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
        self.model = StepModel(Expectation(explores.sync, explores.across))
        # A job that learns for itself knows its gradient as it is now, and no other batch in the same epoch.
        scales = application.profile.max_batch / application.profile.init_batch if shared else 1.0
        self.gradients = SeenGradients(scales)
        self.totals = Totals()
        self._sizes = sizes
        self._phases: Phases | None = None
        self._phases_of: tuple[int, int] = (-1, -1)
        self._tuned: dict[Placement, tuple[tuple[BatchSplit, ...], FloatArray, FloatArray]] = {}
        self._tuned_of = -1
        self._tuned_table: tuple[SplitTable, FloatArray, int] | None = None

    def observe(self, placement: Placement, split: BatchSplit, epoch: int) -> None:
        """Takes in what a job measured while it ran like this."""
        gpus = sum(placement)
        time = self.application.throughput.at(placement, split.local)
        assert time is not None, "it ran"
        point = Point(len(placement) > 1, gpus, float(split.local))
        self.model.add(point, time.step_s - time.sync_s, time.step_s)
        batch = split.total(gpus)
        scale = batch / self.application.profile.init_batch
        self.gradients.note(epoch, scale, self.application.efficiency.statistics(batch, epoch))

    @property
    def most_gpus(self) -> int:
        """The most GPUs that it is thought to profit from: not far beyond what was tried."""
        return max(self._explores.first, self._explores.growth * self.model.largest)

    def best_split(self, placement: Placement, epoch: int, now: GradientStatistics) -> BatchSplit:
        """The batch size with the largest predicted goodput; the smallest when nothing was measured.

        `now` is what the job sees of its gradient: all that is known where nobody has reached its epoch.
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
            sizes = tuple(n for n in self._sizes if n <= self.most_gpus)
            table = _packed(self.application, sizes, self.gpus_per_node)
            self._tuned_table = table, self._iteration_s(table), self.model.version
        return self._tuned_table[:2]

    def _iteration_s(self, table: SplitTable) -> FloatArray:
        return table.iteration_s(*self.model.times_s(table.shapes, table.places))

    def phases(self) -> Phases | None:
        """Goodput by size in the epochs that were reached; the last one goes on for ever. None: no idea."""
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


_tables: dict[tuple[str, tuple[int, ...], int], SplitTable] = {}


def _packed(application: Application, sizes: tuple[int, ...], gpus_per_node: int) -> SplitTable:
    key = (application.profile.digest, sizes, gpus_per_node)
    if key not in _tables:
        _tables[key] = packed_table(application, sizes, gpus_per_node)
    return _tables[key]


_placed: dict[tuple[str, Placement], SplitTable] = {}


def _table_of(application: Application, placement: Placement) -> SplitTable:
    key = (application.profile.digest, placement)
    if key not in _placed:
        _placed[key] = split_table(application, (placement,))
    return _placed[key]


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
    plans = [
        application.fixed_plan(own, pinned) if pinned else application.tuned_plan(own) for own in placements
    ]
    epochs = range(application.efficiency.epochs)
    goodput = np.array([[plan.goodputs[epoch] for plan in plans] for epoch in epochs])
    return phases_at([sum(own) for own in placements], goodput, np.array(application.efficiency.thresholds))
