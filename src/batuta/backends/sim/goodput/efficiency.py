"""How much a step is worth at a batch size, and how far each epoch goes (Pollux, OSDI'21)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from batuta.backends.sim.goodput.profiles import AppProfile
from batuta.core.arrays import FloatArray


class GradientStatistics(NamedTuple):
    """Squared norm and variance of the gradient: what training itself can measure."""

    sqr: float
    var: float


def gain_of(statistics: GradientStatistics, scale: float) -> float:
    """Progress of one step at `scale` times the smallest batch, in steps of the smallest batch."""
    return (statistics.var + statistics.sqr) / (statistics.var / scale + statistics.sqr)


class Efficiency:
    """Gain, epochs and iterations of one application; between validated batch sizes all is linear."""

    __slots__ = ("_batches", "_gains", "_iteration", "_sqr", "_var", "epochs", "init_batch", "thresholds")

    def __init__(self, profile: AppProfile) -> None:
        validation = profile.validation
        self._batches: list[int] = validation.batch_sizes.tolist()
        self._iteration = validation.iteration
        self._sqr = validation.grad_sqr
        self._var = validation.grad_var
        self._gains: dict[int, FloatArray] = {}
        self.epochs = profile.epochs
        self.init_batch = profile.init_batch
        self.thresholds: tuple[float, ...] = (
            0.0,
            *validation.progress[:, : self.epochs].min(axis=0).tolist(),
        )
        """Epoch e (from 0) runs from `thresholds[e]` to `thresholds[e + 1]` of progress."""

    def gains(self, batch: int) -> FloatArray:
        """Gain of a total batch size in every epoch."""
        gains = self._gains.get(batch)
        if gains is None:
            scale = batch / self.init_batch
            sqr, var = self._between(self._sqr, batch), self._between(self._var, batch)
            gains = self._gains[batch] = (var + sqr) / (var / scale + sqr)
        return gains

    def statistics(self, batch: int, epoch: int) -> GradientStatistics:
        """What training at this batch size measures during the epoch."""
        sqr, var = self._between(self._sqr, batch), self._between(self._var, batch)
        return GradientStatistics(float(sqr[epoch]), float(var[epoch]))

    def epoch_at(self, progress: float) -> int:
        """The epoch that this much progress lies in; `epochs` when all is done."""
        return min(bisect_right(self.thresholds, progress) - 1, self.epochs)

    def iterations_after(self, batch: int, epoch: int) -> float:
        """Iterations from the start to the end of an epoch (counted from 0)."""
        return float(self._between(self._iteration, batch)[epoch])

    def remaining_iterations(self, batch: int, epoch: int) -> float:
        """Iterations from the end of the current epoch to the end of the last one; 1 if there are none.

        That the current epoch is left out is how the authors' Optimus counts.
        """
        last = self.epochs - 1
        if epoch >= last:
            return 1.0
        done = self._between(self._iteration, batch)
        return float(done[last] - done[epoch])

    def covers(self, batch: int) -> bool:
        """Whether the batch size lies between validated ones."""
        return self._batches[0] <= batch <= self._batches[-1]

    def _between(self, table: FloatArray, batch: int) -> FloatArray:
        if not self.covers(batch):
            raise ValueError(f"batch size {batch} is outside of {self._batches[0]}…{self._batches[-1]}")
        high = bisect_left(self._batches, batch)
        upper = self._batches[high]
        row: FloatArray
        if upper == batch:
            row = table[high]
        else:
            lower = self._batches[high - 1]
            row = ((batch - lower) * table[high] + (upper - batch) * table[high - 1]) / (upper - lower)
        return row[: self.epochs]
