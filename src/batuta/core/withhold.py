"""Jobs that shall not run now, whatever quota and policy say: parked, cancelled, evicted, backing off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray
from batuta.core.job_table import JobTable
from batuta.core.reason import Evidence, Reason
from batuta.core.wish import Wish
from batuta.core.world import World

_REASONS = {Wish.PARK: Reason.PARKED, Wish.CANCEL: Reason.CANCELLING, Wish.EVICT: Reason.EVICTED}


def withhold(world: World, now_s: float, admitted: Admitted) -> Admitted:
    """The same with a cap of 0 for the jobs that shall not run now, and the reason why."""
    jobs = world.jobs
    if not jobs.held_back:
        return admitted
    cap = (jobs.i("max") if admitted.cap is None else admitted.cap).copy()
    refused = dict(admitted.refused or {})
    for row in np.flatnonzero(withheld(jobs, now_s)).tolist():
        cap[row] = 0
        refused[row] = why_withheld(jobs, row, now_s)
    return replace(admitted, cap=cap, refused=refused)


def withheld(jobs: JobTable, now_s: float) -> BoolArray:
    """The jobs that shall not run now."""
    found: BoolArray = (jobs.i("wish") != Wish.RUN) | (jobs.f("not_before_s") > now_s)
    return found


def why_withheld(jobs: JobTable, row: int, now_s: float) -> tuple[Reason, Evidence]:
    reason = _REASONS.get(jobs.wish_of(row))
    if reason is not None:
        return reason, ()
    return Reason.RESTART_BACKOFF, (("wait_s", float(jobs.f("not_before_s")[row]) - now_s),)


def next_release_s(jobs: JobTable, now_s: float) -> float:
    """When the first job that backs off may run again; infinite when there is none."""
    if not jobs.held_back:
        return math.inf
    times = jobs.f("not_before_s")
    later = times[times > now_s]
    return float(later.min()) if later.size else math.inf
