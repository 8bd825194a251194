"""Jobs that shall not run now, whatever quota and policy say: parked, cancelled, evicted, backing off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray
from batuta.core.job import DesiredState
from batuta.core.job_events import why_tried
from batuta.core.job_table import JobTable, Phase
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World

_REASONS = {
    DesiredState.PARK: Reason.PARKED,
    DesiredState.CANCEL: Reason.CANCELLING,
    DesiredState.EVICT: Reason.EVICTED,
}


def suspend(world: World, now_s: float, admitted: Admitted) -> Admitted:
    """The same with a cap of 0 for the jobs that shall not run now, and the reason why."""
    jobs = world.jobs
    if not jobs.held_back:
        return admitted
    cap = (jobs.max if admitted.cap is None else admitted.cap).copy()
    refused = dict(admitted.refused or {})
    has, wish = jobs.held, jobs.wish
    for row in np.flatnonzero(withheld(jobs, now_s)).tolist():
        # Who runs and backs off from a resize keeps what it has, if it may have as much.
        most = has[row] if wish[row] == DesiredState.RUN else 0
        if most <= cap[row]:
            cap[row] = most
            refused[row] = why_withheld(world, row, now_s)
    return replace(admitted, cap=cap, refused=refused)


def withheld(jobs: JobTable, now_s: float) -> BoolArray:
    """The jobs that shall not run now."""
    found: BoolArray = (jobs.wish != DesiredState.RUN) | (jobs.not_before_s > now_s)
    return found


def left_alone(jobs: JobTable, now_s: float) -> BoolArray:
    """The jobs that were found on their way, or without all their GPUs, and keep what they have for a while.

    The backend has just tried to do better, in vain.
    """
    phase, later = jobs.phase, jobs.not_before_s > now_s
    found: BoolArray = (jobs.wish == DesiredState.RUN) & later & (jobs.held > 0) & (phase != Phase.RUNNING)
    return found


def in_motion_or_left_alone(jobs: JobTable, now_s: float) -> BoolArray | None:
    """The jobs that are not to be changed now; None when there are none."""
    moving = jobs.in_motion()
    if not jobs.held_back:
        return moving
    alone = left_alone(jobs, now_s)
    return alone if moving is None else moving | alone


def why_withheld(world: World, row: int, now_s: float) -> tuple[Reason, Evidence]:
    jobs = world.jobs
    known = world.idle.get(jobs.ids[row])
    if known is not None and known.parked:
        return Reason.PARKED_IDLE, known.parked
    if jobs.wish_of(row) is DesiredState.TRY:
        return why_tried(world, row)
    reason = _REASONS.get(jobs.wish_of(row))
    if reason is not None:
        return reason, ()
    reason = Reason.RESIZE_BACKOFF if jobs.held[row] else Reason.RESTART_BACKOFF
    return reason, (("wait_s", float(jobs.not_before_s[row]) - now_s),)


def next_release_s(world: World, now_s: float) -> float:
    """When the first job that backs off may run again, or nodes be asked again; infinite without one."""
    first_s = min((avoided.until_s for avoided in world.avoided.values()), default=math.inf)
    if not world.jobs.held_back:
        return first_s
    times = world.jobs.not_before_s
    later = times[times > now_s]
    return min(first_s, float(later.min())) if later.size else first_s
