"""Tiresias as the authors of Pollux ran it, to reproduce their published averages to the digit.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI '21, section 5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order


@dataclass(frozen=True, slots=True)
class TiresiasReplay:
    """Two queues by attained service, in order of entry, no promotion; `size` to each that still fits."""

    name: str = "tiresias-replay"
    demote_at_gpu_s: float = 57_600.0
    placement: ClassVar[str] = "most-free"
    knowledge: ClassVar[str] = "none"

    def allocate(self, view: PoolView) -> IntArray:
        order = np.lexsort((np.where(view.tier > 0, view.tier_since_s, 0.0), view.tier))
        return admit_in_order(view.size, view.capacity, order)

    def tiers(self, view: PoolView) -> IntArray:
        return np.where(view.attained_gpu_s >= self.demote_at_gpu_s, 1, view.tier)
