"""Tiresias: least attained service in a few discrete queues, no knowledge of run times.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI '19: Discretized 2D-LAS, with
PROMOTEKNOB against starvation.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order
from batuta.policies.attained_service import move_tiers
from batuta.policies.order import tier_order


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Tier, then first start; `size` to each that still fits."""

    name: str = "tiresias"
    thresholds_gpu_s: tuple[float, ...] = (3600.0,)
    """GPU-seconds since the last start after which a job leaves each tier; one more tier than numbers."""
    promote_after: float = 8.0
    """A job that waits this many times as long as it last ran returns to tier 0."""

    def allocate(self, view: PoolView) -> IntArray:
        return admit_in_order(view.size, view.capacity, tier_order(view))

    def tiers(self, view: PoolView) -> IntArray:
        return move_tiers(view, self.thresholds_gpu_s, self.promote_after)
