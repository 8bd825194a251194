"""Tiresias: least attained service in a few discrete queues, no knowledge of run times.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI '19: Discretized 2D-LAS,
with PROMOTEKNOB against starvation.

`elastic-tiresias` adds compaction when many jobs wait, then growth by gain: Wu et al., "Elastic Deep
Learning in Multi-Tenant GPU Clusters", IEEE TPDS 33(1), 2022. What the paper leaves open follows the
recorded decisions of Voda. `tiresias-replay` is Tiresias as the authors of Pollux ran it, to reproduce
their published averages to the digit: Qiao et al., OSDI '21, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.policy import PlacerKind, PolicyTraits, ReplayTraits
from batuta.core.view import PoolView
from batuta.policies.growth import grow_by_gain, speed_gain
from batuta.policies.order import admit_in_order, tier_order


def move_tiers(view: PoolView, thresholds_gpu_s: tuple[float, ...], promote_after: float) -> IntArray:
    """Every job's tier after this moment.

    A running job that has used more GPU-seconds since its last start than its tier allows moves down one;
    a waiting job that has waited `promote_after` times as long as it last ran returns to tier 0.
    """
    lowest = len(thresholds_gpu_s)
    limits = np.array([*thresholds_gpu_s, np.inf])
    tier = np.clip(view.tier, 0, lowest)
    running = view.gpus > 0
    tier = tier + (running & (view.service_gpu_s > limits[tier]))
    waited_s = view.now_s - view.last_stop_s
    ran_s = view.last_stop_s - view.last_start_s
    tier[~running & (waited_s >= promote_after * ran_s)] = 0
    return tier


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Tier, then first start; `size` to each that still fits."""

    name: str = "tiresias"
    thresholds_gpu_s: tuple[float, ...] = (3600.0,)  # GPU-s since the last start after which a job leaves each tier
    promote_after: float = 8.0  # a job that waits this many times as long as it last ran returns to tier 0
    traits: ClassVar[PolicyTraits] = PolicyTraits(tiered=True, decide_every_s=60.0)

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.size, view.capacity, tier_order(view))

    def tiers(self, view: PoolView) -> IntArray:
        return move_tiers(view, self.thresholds_gpu_s, self.promote_after)


@dataclass(frozen=True, slots=True)
class ElasticTiresias(Tiresias):
    """As `tiresias`; then low tiers shrink to `min` if many wait, and free GPUs go where they gain most.

    Whether a job may take part in growth (`min` ≤ what is free) is asked once, before the first step, and
    of jobs with GPUs as well: the recorded behaviour. Where sizes are not all integers, a step goes to
    the next legal size and its gain is the speed gained per GPU of the step, which for one GPU and for
    `speed[min] / min` is the published gain.
    """

    name: str = "elastic-tiresias"
    compact_above: int = 10  # jobs of tier 1 and up shrink to their minimum when more than this many did not fit

    def allocate(self, view: PoolView) -> IntArray:
        gpus = admit_in_order(view.size, view.capacity, tier_order(view))
        waiting = len(gpus) - np.count_nonzero(gpus)
        if waiting > self.compact_above:
            gpus = np.where((view.tier >= 1) & (gpus > 0), view.min, gpus)
        free = view.capacity - int(gpus.sum())
        if free <= 0:
            return gpus
        return grow_by_gain(view, gpus, free, np.flatnonzero(view.min <= free), speed_gain, view.tier)


@dataclass(frozen=True, slots=True)
class TiresiasReplay:
    """Two queues by attained service, in order of entry, no promotion; `size` to each that still fits."""

    name: str = "tiresias-replay"
    demote_at_gpu_s: float = 57_600.0
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        placer=PlacerKind.MOST_FREE,
        tiered=True,
        as_published=True,
        decide_every_s=60.0,
        replay=ReplayTraits(knowledge="none"),
    )

    def allocate(self, view: PoolView) -> IntArray:
        order = np.lexsort((np.where(view.tier > 0, view.tier_since_s, 0.0), view.tier))
        return admit_in_order(view.size, view.capacity, order)

    def tiers(self, view: PoolView) -> IntArray:
        return np.where(view.attained_gpu_s >= self.demote_at_gpu_s, 1, view.tier)
