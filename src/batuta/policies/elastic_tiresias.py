"""Elastic Tiresias: Tiresias, then compaction when many wait, then growth by gain.

Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", IEEE TPDS 33(1), 2022: Elastic-Tiresias. What
the paper leaves open follows the recorded decisions of Voda.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.attained_service import move_tiers
from batuta.policies.gain import grow_by_gain, speed_gain
from batuta.policies.order import tier_order


@dataclass(frozen=True, slots=True)
class ElasticTiresias:
    """As `tiresias`; then low tiers shrink to `min` if many wait, and free GPUs go where they gain most.

    Whether a job may take part in growth (`min` ≤ what is free) is asked once, before the first step, and
    of jobs with GPUs as well: the recorded behaviour. Where sizes are not all integers, a step goes to
    the next legal size and its gain is the speed gained per GPU of the step, which for one GPU and for
    `speed[min] / min` is the published gain.
    """

    name: str = "elastic-tiresias"
    thresholds_gpu_s: tuple[float, ...] = (3600.0,)
    """GPU-seconds since the last start after which a job leaves each tier; one more tier than numbers."""
    promote_after: float = 8.0
    """A job that waits this many times as long as it last ran returns to tier 0."""
    compact_above: int = 10
    """Jobs of tier 1 and up shrink to their minimum when more than this many did not fit."""

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.size, view.capacity, tier_order(view))
        waiting = len(gpus) - np.count_nonzero(gpus)
        if waiting > self.compact_above:
            gpus = np.where((view.tier >= 1) & (gpus > 0), view.min, gpus)
        free = view.capacity - int(gpus.sum())
        if free <= 0:
            return gpus
        return grow_by_gain(view, gpus, free, np.flatnonzero(view.min <= free), speed_gain, view.tier)

    def tiers(self, view: PoolView) -> IntArray:
        return move_tiers(view, self.thresholds_gpu_s, self.promote_after)
