"""Optimus as the authors of Pollux ran it, to reproduce their published averages to the digit.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys '18,
section 4.1; run with true step times by Qiao et al., OSDI '21, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.gain import grow_by_gain
from batuta.policies.step_list import StepList


@dataclass(frozen=True, slots=True)
class OptimusReplay:
    """`min` to each in submit order, then one step at a time to whoever saves most time by it."""

    name: str = "optimus-replay"
    placement: ClassVar[str] = "most-free-by-size"
    knowledge: ClassVar[str] = "optimus"

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.min, view.capacity)
        left = view.capacity - int(gpus.sum())

        def time_saved(steps: StepList) -> FloatArray:
            """Seconds per GPU of the step."""
            with np.errstate(divide="ignore", invalid="ignore"):
                saved: FloatArray = 1 / steps.slow - 1 / steps.fast
                return saved * view.remaining_s[steps.row] / steps.width

        return grow_by_gain(view, gpus, left, np.flatnonzero(gpus), time_saved)
