"""The queue levels of Tiresias: who moves down, who is promoted."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView


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
