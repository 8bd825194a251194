"""How much of a job's time would have been progress, had it one restart more: Pollux and Sia."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.view import PoolView

_LEAST = 1e-3


def restart_factor(view: PoolView) -> FloatArray:
    """(T − R·S) / (T + S) with age T, restarts R and restart time S, from just above 0 to 1.

    A young job, or one that restarts often, has to gain much by a change. Never 0: a job that came this very
    moment starts where there is room.
    """
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    restarts = np.zeros(len(view)) if view.restarts is None else view.restarts
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = (age_s - restarts * view.restart_s) / (age_s + view.restart_s)
    # No age and no restart time: nothing is known against it.
    return np.clip(np.where(np.isnan(factor), 1.0, factor), _LEAST, 1.0)
