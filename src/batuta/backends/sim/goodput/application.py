"""One application as the simulation knows it: goodput by placement, batch split and epoch, tabulated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from batuta.backends.sim.goodput.batch import BatchSplit, candidate_splits, split_fixed, split_planned
from batuta.backends.sim.goodput.efficiency import Efficiency
from batuta.backends.sim.goodput.profiles import AppProfile, load_profiles
from batuta.backends.sim.goodput.throughput import Placement, Throughput, pack


class NotProfiled(Exception):
    """A placement or batch size that lies outside of what was measured."""


T_co = TypeVar("T_co", covariant=True)


class PerEpoch(Protocol[T_co]):
    """A value for each epoch, by its number: a list, a tuple, or something that asks."""

    def __getitem__(self, epoch: int, /) -> T_co: ...


class EpochPlan(NamedTuple):
    """What a job does with a placement, epoch by epoch."""

    goodputs: PerEpoch[float]
    """Progress per second."""
    splits: PerEpoch[BatchSplit]


class Application:
    """Profile, throughput and efficiency of one application. Answers are shared by all its jobs."""

    __slots__ = ("_fixed", "_planned", "_tuned", "efficiency", "name", "profile", "throughput")

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
                raise NotProfiled(
                    f"{self.name}: no step time for placement {placement}, local batch {split.local}"
                )
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
            times = (math.inf, *(self._packed(batch, n, gpus_per_node) for n in range(1, most + 1)))
            self._planned[key] = times
        return times

    def _packed(self, batch: int, gpus: int, gpus_per_node: int) -> float:
        return self.iteration_s(pack(gpus, gpus_per_node), split_planned(self.profile, batch, gpus))


def load_applications(folder: Path) -> dict[str, Application]:
    """Every application below the folder, by name; raises ProfileError with all faults at once."""
    return {name: Application(profile) for name, profile in load_profiles(folder).items()}


def save_points(applications: dict[str, Application]) -> None:
    """Keep what this run had to interpolate, so that the next one starts faster. Call it once, at the end."""
    for application in applications.values():
        application.throughput.save()
