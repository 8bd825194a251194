"""A lease: whoever has just got GPUs keeps them for a while, so that dividing time costs few restarts."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView
from batuta.policies.admission_pass import admit_in_order


def leased(view: PoolView, lease_s: float, restarts: float = 12.0) -> IntArray:
    """GPUs that each row keeps: all that it has, or nothing. Together they are within the capacity.

    A lease lasts `lease_s` seconds since the last start or resize, and at least so many restart times.
    """
    begun_s = np.fmax(view.last_start_s, view.last_resize_s)
    with np.errstate(invalid="ignore"):
        young = view.now_s - begun_s < np.maximum(lease_s, restarts * view.restart_s)
    legal = (view.gpus > 0) & (view.sizes.floor(np.maximum(view.gpus, view.min)) == view.gpus)
    return admit_in_order(np.where(young & legal, view.gpus, 0), view.capacity)
