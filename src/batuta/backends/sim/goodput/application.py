"""The true goodput of one application, by placement, batch split and epoch (Pollux, OSDI'21).

Goodput is progress per second: how much a step is worth at a batch size (efficiency) over how long it takes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from batuta.backends.sim.goodput.profiles import AppProfile, load_profiles
from batuta.backends.sim.goodput.throughput import Placement, Throughput, pack
from batuta.core.arrays import FloatArray

SLACK = 1e-8  # taken off before every ceiling, so that 4.000000001 is not 5

CANDIDATES = 50  # batch sizes that tuning looks at, in geometric steps


class BatchSplit(NamedTuple):
    """Each replica runs `accumulation + 1` passes of `local` samples in an iteration."""

    local: int
    accumulation: int

    def total(self, gpus: int) -> int:
        return gpus * self.local * (self.accumulation + 1)


def split_fixed(profile: AppProfile, batch: int, gpus: int) -> BatchSplit:
    """The split of a batch size that the user fixed; the total may differ a little from what was asked."""
    # One pass on one GPU gives a single gradient, and no variance to scale the learning rate by.
    least = 1 if gpus == 1 and batch > profile.init_batch else 0
    return _split(profile, batch, gpus, least)


def split_planned(profile: AppProfile, batch: int, gpus: int) -> BatchSplit:
    """The split that Optimus plans with: one GPU always accumulates, also at the smallest batch size."""
    return _split(profile, batch, gpus, 1 if gpus == 1 else 0)


def candidate_splits(profile: AppProfile, gpus: int) -> list[BatchSplit]:
    """Splits of 50 geometric batch sizes from the smallest possible to the largest validated one."""
    smallest = max(profile.init_batch, profile.min_local * gpus)
    if smallest > profile.max_batch:
        return []
    splits: dict[BatchSplit, None] = {}
    for batch in np.geomspace(smallest, profile.max_batch, CANDIDATES).tolist():
        local = batch / gpus
        accumulation = math.ceil(local / profile.max_local - SLACK) - 1
        if gpus == 1 and local > profile.init_batch + SLACK:
            accumulation = max(1, accumulation)
        split = _cap(profile, gpus, math.ceil(local / (accumulation + 1) - SLACK), accumulation)
        if profile.min_local <= split.local <= profile.max_local and split.total(gpus) >= profile.init_batch:
            splits[split] = None
    return list(splits)


def _split(profile: AppProfile, batch: int, gpus: int, least: int) -> BatchSplit:
    share = math.ceil(batch / gpus - SLACK)
    accumulation = max(math.ceil(share / profile.max_local - SLACK) - 1, least)
    return _cap(profile, gpus, math.ceil(share / (accumulation + 1) - SLACK), accumulation)


def _cap(profile: AppProfile, gpus: int, local: int, accumulation: int) -> BatchSplit:
    # Rounding up must not lead beyond the largest validated batch, where no statistics exist.
    return BatchSplit(min(local, profile.max_batch // (gpus * (accumulation + 1))), accumulation)


class GradientStatistics(NamedTuple):
    """Squared norm and variance of the gradient: what training itself can measure."""

    sqr: float
    var: float


class Efficiency:
    """Gain, epochs and iterations of one application; between validated batch sizes all is linear."""

    def __init__(self, profile: AppProfile) -> None:
        validation = profile.validation
        self._batches: list[int] = validation.batch_sizes.tolist()
        self._iteration = validation.iteration
        self._sqr = validation.grad_sqr
        self._var = validation.grad_var
        self._gains: dict[int, FloatArray] = {}
        self.epochs = profile.epochs
        self.init_batch = profile.init_batch
        self.thresholds: tuple[float, ...] = (0.0, *validation.progress[:, : self.epochs].min(axis=0).tolist())
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


class NotProfiled(Exception):
    """A placement or batch size that lies outside of what was measured."""


T_co = TypeVar("T_co", covariant=True)


class PerEpoch(Protocol[T_co]):
    """A value for each epoch, by its number: a list, a tuple, or something that asks."""

    def __getitem__(self, epoch: int, /) -> T_co: ...


class EpochPlan(NamedTuple):
    """What a job does with a placement, epoch by epoch."""

    goodputs: PerEpoch[float]  # progress per second
    splits: PerEpoch[BatchSplit]


class Application:
    """Profile, throughput and efficiency of one application. Answers are shared by all its jobs."""

    def __init__(self, profile: AppProfile) -> None:
        self.name = profile.name
        self.profile = profile
        self.throughput = Throughput(profile)
        self.efficiency = Efficiency(profile)
        self._fixed: dict[tuple[Placement, BatchSplit], list[float]] = {}
        self._tuned: dict[Placement, EpochPlan] = {}
        self._planned: dict[tuple[int, int, int], tuple[float, ...]] = {}

    def goodputs(self, placement: Placement, split: BatchSplit) -> list[float]:
        """Goodput of a split in every epoch, in progress per second."""
        key = (placement, split)
        goodputs = self._fixed.get(key)
        if goodputs is None:
            iteration_s = self.iteration_s(placement, split)
            if iteration_s == math.inf:
                raise NotProfiled(f"{self.name}: no step time for placement {placement}, local batch {split.local}")
            gains = self.efficiency.gains(split.total(sum(placement)))
            goodputs = self._fixed[key] = (gains / iteration_s).tolist()
        return goodputs

    def fixed_plan(self, placement: Placement, batch: int) -> EpochPlan:
        """The total batch size stays as the user asked for it."""
        split = split_fixed(self.profile, batch, sum(placement))
        return EpochPlan(self.goodputs(placement, split), (split,) * self.efficiency.epochs)

    def tuned_plan(self, placement: Placement) -> EpochPlan:
        """In every epoch the split with the largest true goodput among 50 geometric batch sizes."""
        plan = self._tuned.get(placement)
        if plan is None:
            gpus = sum(placement)
            splits = [
                split
                for split in candidate_splits(self.profile, gpus)
                if self.throughput.at(placement, split.local) is not None
            ]
            if not splits:
                raise NotProfiled(f"{self.name}: no batch size fits placement {placement}")
            table = np.array([self.goodputs(placement, split) for split in splits])
            best = table.argmax(axis=0)
            plan = EpochPlan(table.max(axis=0).tolist(), tuple(splits[i] for i in best.tolist()))
            self._tuned[placement] = plan
        return plan

    def iteration_s(self, placement: Placement, split: BatchSplit) -> float:
        """Seconds of one iteration; infinite where nothing near was measured."""
        time = self.throughput.at(placement, split.local)
        return math.inf if time is None else time.iteration_s(split.accumulation)

    def packed_iteration_s(self, batch: int, most: int, gpus_per_node: int = 4) -> tuple[float, ...]:
        """Seconds of one iteration at index n, for n = 1…most GPUs on full nodes and a rest.

        Index 0 is infinite, and so is every size that cannot run. One GPU always accumulates (Optimus).
        """
        key = (batch, most, gpus_per_node)
        times = self._planned.get(key)
        if times is None:
            placements = [(pack(n, gpus_per_node), split_planned(self.profile, batch, n)) for n in range(1, most + 1)]
            times = self._planned[key] = (math.inf, *(self.iteration_s(*one) for one in placements))
        return times


def load_applications(folder: Path) -> dict[str, Application]:
    """Every application below the folder, by name; raises ProfileError with all faults at once."""
    return {name: Application(profile) for name, profile in load_profiles(folder).items()}


def save_points(applications: dict[str, Application]) -> None:
    """Keep what this run had to interpolate, so that the next one starts faster. Call it once, at the end."""
    for application in applications.values():
        application.throughput.save()
