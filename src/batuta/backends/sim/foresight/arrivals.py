"""Jobs that are still to come: as many, and of the kind, that came lately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batuta.backends.sim.foresight.lengths import Draws
from batuta.backends.sim.workload import SimJob
from batuta.core.job import Job
from batuta.core.world import PastJob, World

WINDOW_S = 4 * 3600.0
"""How far back arrivals are looked at."""
_FEW = 3
"""Fewer arrivals say nothing about what is to come."""
_MOST = 5_000


@dataclass(frozen=True, slots=True)
class Recent:
    """Who came lately, and how often somebody comes."""

    jobs: tuple[Job, ...]
    """With what is known by now of their work."""
    per_s: float


def recent_arrivals(world: World, now_s: float, window_s: float = WINDOW_S) -> Recent | None:
    """What came within the window, in the order of arrival; None when that is too little to go by."""
    since_s = now_s - window_s
    found = [job for job in world.jobs.jobs if job.submit_s >= since_s]
    found += [_as_it_was(past) for past in world.past.values() if past.job.submit_s >= since_s]
    if len(found) < _FEW:
        return None
    found.sort(key=lambda job: (job.submit_s, job.sequence, job.id))
    observed_s = min(window_s, now_s - found[0].submit_s)
    return Recent(tuple(found), len(found) / observed_s) if observed_s > 0 else None


def _as_it_was(past: PastJob) -> Job:
    """A job that is over: its work is what its GPUs have done, about at the size that it asked for."""
    job = past.job
    if past.attained_gpu_s <= 0:
        return job
    return replace(job, work_s=past.attained_gpu_s * job.curve.at(job.size) / job.size)


def draw_arrivals(recent: Recent, draws: Draws, run: int, now_s: float, ahead_s: float) -> Sequence[SimJob]:
    """Arrivals of one run: a Poisson process of jobs like those that came lately."""
    chance, found, time_s = draws.chance(f"arrivals {run}"), list[SimJob](), now_s
    most = min(_MOST, math.ceil(4 * recent.per_s * ahead_s) + 10)
    for number in range(most):
        time_s += float(chance.exponential(1.0 / recent.per_s))
        if time_s > now_s + ahead_s:
            break
        like = recent.jobs[int(chance.integers(len(recent.jobs)))]
        job = replace(like, id=f"to-come-{number}", submit_s=time_s, sequence=number, name="")
        found.append(SimJob(job, job.work_s, job.curve))
    return found
