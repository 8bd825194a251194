"""A job that tunes its batch size with what was learned, not with what is true."""

from __future__ import annotations

from batuta.backends.sim.goodput.application import Application, EpochPlan, PerEpoch
from batuta.backends.sim.goodput.batch import BatchSplit
from batuta.backends.sim.goodput.lessons import Lessons
from batuta.backends.sim.goodput.throughput import Placement


class LearnedBatch:
    """Chooses at every start, in every epoch and in every round, by the gradients that it sees now."""

    __slots__ = ("_batch", "_chosen", "application", "lessons")

    def __init__(self, lessons: Lessons) -> None:
        self.lessons = lessons
        self.application = lessons.application
        self._batch = self.application.profile.rule.pinned_batch or self.application.profile.init_batch
        self._chosen: dict[tuple[Placement, int], BatchSplit] = {}

    def plan(self, application: Application, placement: Placement) -> EpochPlan:
        return EpochPlan(_Goodputs(self, placement), _Splits(self, placement))

    def split(self, placement: Placement, epoch: int) -> BatchSplit:
        """What it runs with; chosen once in a round."""
        split = self._chosen.get((placement, epoch))
        if split is None:
            now = self.application.efficiency.statistics(self._batch, epoch)
            split = self._chosen[placement, epoch] = self.lessons.best_split(placement, epoch, now)
            self._batch = split.total(sum(placement))
        return split

    def end_round(self) -> None:
        """Tells what ran since the last time."""
        for (placement, epoch), split in self._chosen.items():
            self.lessons.observe(placement, split, epoch)
        self._chosen.clear()


class _Splits(PerEpoch[BatchSplit]):
    __slots__ = ("_mode", "_placement")

    def __init__(self, mode: LearnedBatch, placement: Placement) -> None:
        self._mode, self._placement = mode, placement

    def __getitem__(self, epoch: int) -> BatchSplit:
        return self._mode.split(self._placement, epoch)


class _Goodputs(PerEpoch[float]):
    __slots__ = ("_mode", "_placement")

    def __init__(self, mode: LearnedBatch, placement: Placement) -> None:
        self._mode, self._placement = mode, placement

    def __getitem__(self, epoch: int) -> float:
        split = self._mode.split(self._placement, epoch)
        return self._mode.application.goodputs(self._placement, split)[epoch]
