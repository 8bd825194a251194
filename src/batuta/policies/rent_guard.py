"""What keeps a policy of prices decent: nobody starves, and nobody is restarted for ever.

Both guards are factors of 1 as long as all is well, so they cost nothing then.
"""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray
from batuta.core.view import PoolView
from batuta.policies.rent_options import SizeOptions

LATE = 2.0
"""From so many times the time that a fair share would have taken, a job's work becomes dearer, …"""
URGENCY = 6.0
"""… by this power of how much later it is."""
FREE_RESTARTS, RESTARTS_PER_HOUR = 6.0, 6.0
"""So many restarts are usual; who has had more is changed with more and more reluctance, …"""
ENOUGH = 1.5
"""… and who has had so many times as many keeps what it has for a while, whatever it says of itself."""
HOUR_S = 3600.0


def urgency(view: PoolView, options: SizeOptions) -> FloatArray:
    """How much dearer the work of each job is because it is late; 1 for nearly all.

    Late is judged as finish-time fairness is (Themis, NSDI '20): from submission to the earliest end that is
    still possible, over the time that a fair share of the cluster would have taken for all of its work.
    """
    left_s = options.left_s.min(axis=0)
    share = fair_share(view, view.capacity, left_s)
    within = np.where(options.legal & (options.gpus <= share), options.speed, 0.0).max(axis=0)
    # Less than its least size is that size for a part of the time.
    least = options.speed[0] * np.minimum(share / np.maximum(options.gpus[0], 1), 1.0)
    speed = np.maximum(np.maximum(within, least), 1e-9)
    return lateness(view, options.alone_s, left_s, speed)


def fair_share(view: PoolView, gpus: int, left_s: FloatArray) -> FloatArray:
    """The GPUs that are due to each job from its submission to its end, if it stays as crowded as now.

    Who has been here in a rush was due less than what is due now that it is over.
    """
    share = np.full(len(view), gpus / len(view))
    if view.crowd is None:
        return share
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    crowd: FloatArray = (view.crowd * age_s + left_s) / np.maximum(age_s + left_s, 1.0)
    return share / np.maximum(crowd, 1.0 / len(view))


def lateness(
    view: PoolView,
    work_s: FloatArray,
    left_s: FloatArray,
    fair_speed: FloatArray,
    unit: FloatArray | float = 1.0,
) -> FloatArray:
    """The same from the work that is left, the least time for it, and the speed on a fair share.

    `unit` is how many of the view's seconds of work make one of these.
    """
    done_s = 0.0 if view.done_s is None else np.maximum(np.nan_to_num(view.done_s), 0.0) / unit
    fair_s = (work_s + done_s) / fair_speed + view.restart_s
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    late: FloatArray = (age_s + left_s) / np.maximum(fair_s, 1.0) / LATE
    return np.maximum(late, 1.0) ** URGENCY


def unrest(view: PoolView) -> FloatArray:
    """The restarts of each job over the usual number of them; 1 where it is no more."""
    if view.restarts is None:
        return np.ones(len(view))
    age_s = np.maximum(view.now_s - view.submit_s, 0.0)
    usual = FREE_RESTARTS + RESTARTS_PER_HOUR * age_s / HOUR_S
    return np.maximum(view.restarts / usual, 1.0)


def is_tired(view: PoolView, often: FloatArray) -> BoolArray:
    """Who runs, and was restarted far too often."""
    tired: BoolArray = (often >= ENOUGH) & (view.gpus > 0)
    return tired


def hold_still(values: FloatArray, stays: BoolArray, tired: BoolArray) -> FloatArray:
    """The values, such that whoever is tired of restarts keeps what it has."""
    if not tired.any():
        return values
    return np.where(tired & stays & (values > 0), 1e3 * float(values.max()), values)
