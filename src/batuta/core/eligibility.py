"""Which jobs may not run now, and which running jobs keep their size.

A job that is parked, cancelled, evicted or backing off does not run, whatever quota and policy say. A running
job keeps its size while no checkpoint of it was seen, or when it changed a moment ago.

A restart of a job of which no checkpoint was seen loses its work. While such a job runs, the policy is not
asked about it: it does not grow, and gives nothing to a job that grows. An elastic one is restarted with
fewer GPUs for one reason only: a job that waits, and that the policy would start, fits at its `min` then
and does not fit otherwise. Each time it gives up at least half of what it has, down to its own `min`: a job
with eight GPUs is restarted three times at most, not for every arrival.

Any other job changes once for each change of demand, and a bounded number of times an hour. Demand changes
when a job arrives, ends or asks for something else, when a node comes or goes, and when quota or the policy
changes. Estimates change all the time: a job that was just resized for an arrival would be resized again as
soon as the first report of the new job is in. So a job that changed keeps its size until demand changes
again, or until it has settled; only a job that waits and would fit at its `min` goes first.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from batuta.core import event as ev
from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.job import DesiredState
from batuta.core.job_table import CHANGES_AT_ONCE, JobTable, Phase
from batuta.core.reason import Evidence, Reason
from batuta.core.trial import never_fits
from batuta.core.world import World


def unsaved_rows(jobs: JobTable, cap: IntArray | None) -> IntArray:
    """Rows that run, have a size that they may have, and of which no checkpoint was seen; in their order."""
    if not jobs.unsaved:
        return np.zeros(0, dtype=np.int64)
    gpus = jobs.held
    runs: BoolArray = (gpus > 0) & (jobs.phase == Phase.RUNNING)
    running = np.flatnonzero(runs)
    if len(running) <= len(jobs.unsaved):
        found = np.array([row for row in running.tolist() if jobs.ids[row] in jobs.unsaved], dtype=np.int64)
    else:
        found = np.array(sorted(row for row in map(jobs.row, jobs.unsaved) if runs[row]), dtype=np.int64)
    if not found.size:
        return found
    # Who was given another range by its user has to be restarted all the same.
    stays: BoolArray = jobs.legal_sizes().subset(found).floor(gpus[found]) == gpus[found]
    if cap is not None:
        stays &= cap[found] >= gpus[found]
    return found[stays]


def rows_to_shrink(jobs: JobTable, cap: IntArray | None) -> IntArray:
    """The elastic ones of these that have more than their `min`."""
    if not jobs.elastic:
        return np.zeros(0, dtype=np.int64)
    rows = unsaved_rows(jobs, cap)
    return rows[jobs.held[rows] > jobs.min[rows]] if rows.size else rows


def room_for_starts(
    world: World,
    now_s: float,
    rows: IntArray,
    kept: IntArray,
    wanted: IntArray,
    gpu_type: IntArray | None,
    capacity: list[int],
) -> IntArray | None:
    """What all jobs get when some of `rows` shrink, so that jobs start that otherwise wait; None for none.

    `kept` is what the policy gives while `rows` keep their sizes, `wanted` what it would give if they could
    be resized.
    """
    jobs, given = world.jobs, kept.copy()
    kinds = np.zeros(jobs.n, dtype=np.int64) if gpu_type is None else gpu_type
    starts = np.flatnonzero((jobs.held == 0) & (kept == 0) & (wanted > 0))
    starts = starts[np.argsort(-jobs.priority[starts], kind="stable")]
    givers = rows[wanted[rows] < jobs.held[rows]]
    begun_s = np.fmax(jobs.last_start_s[givers], jobs.last_resize_s[givers])
    lost_gpu_s = jobs.held[givers] * (now_s - begun_s)
    givers = givers[np.argsort(lost_gpu_s, kind="stable")]
    held = jobs.gpu_type
    spare = [total - int(given[kinds == kind].sum()) for kind, total in enumerate(capacity)]
    started: list[int] = []
    for row in starts.tolist():
        kind, needs = int(kinds[row]), int(jobs.min[row])
        short = needs - max(spare[kind], 0)
        if short <= 0:
            continue  # it would fit as it is, and the policy does not start it all the same
        smaller = _shrink(jobs, [giver for giver in givers.tolist() if held[giver] == kind], given, short)
        if not smaller:
            continue
        spare[kind] = max(spare[kind], 0) - needs
        for giver, size in smaller.items():
            spare[kind] += int(given[giver]) - size
            given[giver] = size
        given[row] = needs
        started.append(row)
    # What was given up beyond that spares those that start another restart.
    for row in started:
        kind, legal = int(kinds[row]), jobs.legal_sizes().of(row)
        most = min(int(wanted[row]), int(given[row]) + max(spare[kind], 0))
        size = int(legal[legal <= most].max())
        spare[kind] -= size - int(given[row])
        given[row] = size
    return given if started else None


def _shrink(jobs: JobTable, givers: list[int], given: IntArray, short: int) -> dict[int, int]:
    """Smaller sizes for some of these, which free so many GPUs; empty when that cannot be had."""
    found: dict[int, int] = {}
    sizes, low = jobs.legal_sizes(), jobs.min
    for giver in givers:
        has, least = int(given[giver]), int(low[giver])
        most = max(least, min(has - short, has // 2))
        legal = sizes.of(giver)
        size = int(legal[legal <= most].max())
        if size < has:
            found[giver] = size
            short -= has - size
        if short <= 0:
            return found
    return {}


CHANGES_PER_HOUR = 12.0  # so many changes an hour a job gains, up to CHANGES_AT_ONCE: together the most within any hour
MOST_CHANGES_AN_HOUR = int(CHANGES_AT_ONCE + CHANGES_PER_HOUR)
SETTLES_S = 300.0  # for so long after a change estimates alone do not change a job again
HOUR_S = 3600.0

CHANGES_DEMAND: frozenset[type] = frozenset(
    {
        *(ev.JobSubmitted, ev.JobEnded, ev.JobChanged, ev.JobWished, ev.JobInterrupted),
        *(ev.NodeAdded, ev.NodeChanged, ev.NodeLost, ev.NodeReturned, ev.NodeCordoned, ev.NodeUncordoned),
        *(ev.GpuFailed, ev.GpuRepaired, ev.OthersUse, ev.QuotaSet, ev.PolicySet),
    }
)
"""The events after which every job may be changed once more."""


def note_change(world: World, row: int, now_s: float) -> None:
    """Notes that a plan resizes or moves a job, or starts it once more. Its first start is no change."""
    jobs = world.jobs
    if jobs.restarts[row]:
        gained = CHANGES_PER_HOUR * (now_s - jobs.changed_s.item(row)) / HOUR_S
        jobs.changes_left[row] = min(jobs.changes_left.item(row) + gained, CHANGES_AT_ONCE) - 1.0
        jobs.changed_s[row], jobs.changed_generation[row] = now_s, world.demand_generation


def changes_left(jobs: JobTable, now_s: float) -> FloatArray:
    """How often each job may be changed now."""
    gained = CHANGES_PER_HOUR * (now_s - jobs.changed_s) / HOUR_S
    return np.minimum(jobs.changes_left + gained, CHANGES_AT_ONCE)


def held(world: World, now_s: float) -> BoolArray:
    """The running jobs that keep their size, unless a job that fits at its `min` would have to wait."""
    jobs = world.jobs
    recent = jobs.changed_generation == world.demand_generation
    recent &= now_s - jobs.changed_s < SETTLES_S
    found: BoolArray = (recent | (changes_left(jobs, now_s) < 1.0)) & (jobs.held > 0)
    found &= jobs.phase == Phase.RUNNING
    return found


def why_held(world: World, row: int, now_s: float) -> Evidence:
    """The numbers behind Reason.SETTLING."""
    jobs = world.jobs
    return (
        ("ago_s", now_s - float(jobs.changed_s[row])),
        ("changes_left", math.floor(float(changes_left(jobs, now_s)[row]))),
        ("most", MOST_CHANGES_AN_HOUR),
    )


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
    """The jobs that the backend has just tried to start or repair, in vain: they keep what they have for a while."""
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
        return _why_tried(world, row)
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


def _why_tried(world: World, row: int) -> tuple[Reason, Evidence]:
    """Why a job waits that is being tried out, or was."""
    job = world.jobs.jobs[row]
    measured, plan = world.trials.get(job.id, ()), job.trial
    sizes = () if plan is None else plan.sizes
    if sizes and never_fits(measured, sizes):
        return Reason.OUT_OF_MEMORY, (("most", max(sizes)), ("sizes", len(sizes)))
    return Reason.IN_TRIAL, (("measured", len(measured)), ("sizes", len(sizes)))
