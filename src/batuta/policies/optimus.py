"""Optimus: one step at a time to the job whose remaining time falls most by it.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys '18,
section 4.1. The paper counts workers and parameter servers; here a step is GPUs. `optimus-replay` is the
same rule with true step times and the placement of the published runs: Qiao et al., OSDI '21, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.policy import PLAIN, PlacerKind, PolicyTraits, ReplayTraits
from batuta.core.view import PoolView
from batuta.policies.growth import StepList, grow_by_gain
from batuta.policies.order import admit_in_order


@dataclass(frozen=True, slots=True)
class Optimus:
    """`min` to each in submit order, then one step at a time to the job that saves most time per GPU."""

    name: str = "optimus"
    loyalty: float = 1.1
    """A step that a job has taken already counts so much more. The paper decides every ten minutes; here jobs
    that are nearly as good would take a GPU from each other at every event."""
    traits: ClassVar[PolicyTraits] = PLAIN

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.min, view.capacity)
        left = view.capacity - int(gpus.sum())
        return grow_by_gain(view, gpus, left, np.flatnonzero(gpus), partial(self._time_saved, view))

    def _time_saved(self, view: PoolView, steps: StepList) -> FloatArray:
        """Seconds that each step saves, per GPU."""
        with np.errstate(divide="ignore", invalid="ignore"):
            saved: FloatArray = 1 / steps.slow - 1 / steps.fast
            saved *= view.remaining_s[steps.row] / steps.width
        kept = steps.after <= view.gpus[steps.row]
        return saved if self.loyalty == 1.0 else saved * np.where(kept, self.loyalty, 1.0)


@dataclass(frozen=True, slots=True)
class OptimusReplay(Optimus):
    """As `optimus`, with true step times and the placement of the published runs."""

    name: str = "optimus-replay"
    loyalty: float = 1.0
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        placer=PlacerKind.MOST_FREE_BY_SIZE, as_published=True, replay=ReplayTraits(knowledge="optimus")
    )
