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
TOGETHER_S = 10.0
"""Jobs that come within so long of each other came together: a sweep is one arrival of many jobs."""
_FEW = 3
"""Fewer arrivals say nothing about what is to come."""
_LEAST_S = 900.0
"""What was seen in less time than this says nothing about how often it happens."""
MOST = 5_000
"""More are not drawn in one run."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Who came lately, and how often somebody comes."""

    groups: tuple[tuple[Job, ...], ...]
    """Jobs that came together, with what is known by now of their work."""
    per_s: float
    """Groups in a second."""

    @property
    def jobs_per_s(self) -> float:
        return self.per_s * sum(map(len, self.groups)) / len(self.groups)


def recent_arrivals(world: World, now_s: float, window_s: float = WINDOW_S) -> Recent | None:
    """What came within the window, in the order of arrival; None when that is too little to go by."""
    living = [job for job in world.jobs.jobs if job.submit_s <= now_s]
    known = [*living, *(_as_it_was(past) for past in world.past.values())]
    since_s = now_s - window_s
    found = sorted(
        (job for job in known if job.submit_s >= since_s),
        key=lambda job: (job.submit_s, job.sequence, job.id),
    )
    groups = _together(found)
    if len(groups) < _FEW:
        return None
    # Who has seen nobody before the window cannot know how long nobody came.
    seen_before = any(job.submit_s < since_s for job in known)
    observed_s = window_s if seen_before else now_s - found[0].submit_s
    return Recent(groups, len(groups) / max(observed_s, _LEAST_S))


def _together(jobs: Sequence[Job]) -> tuple[tuple[Job, ...], ...]:
    groups: list[list[Job]] = []
    for job in jobs:
        if groups and job.submit_s - groups[-1][0].submit_s <= TOGETHER_S:
            groups[-1].append(job)
        else:
            groups.append([job])
    return tuple(map(tuple, groups))


def _as_it_was(past: PastJob) -> Job:
    """A job that is over: its work is what its GPUs have done, about at the size that it asked for."""
    job = past.job
    if past.attained_gpu_s <= 0:
        return job
    return replace(job, work_s=past.attained_gpu_s * job.curve.at(job.size) / job.size)


def draw_arrivals(recent: Recent, draws: Draws, run: int, now_s: float, ahead_s: float) -> Sequence[SimJob]:
    """Arrivals of one run: a Poisson process of groups of jobs like those that came lately."""
    chance, found, time_s = draws.chance(f"arrivals {run}"), list[SimJob](), now_s
    most = min(MOST, math.ceil(4 * recent.jobs_per_s * ahead_s) + 10)
    while len(found) < most:
        time_s += float(chance.exponential(1.0 / recent.per_s))
        if time_s > now_s + ahead_s:
            break
        for like in recent.groups[int(chance.integers(len(recent.groups)))]:
            number = len(found)
            job = replace(like, id=f"to-come-{number}", submit_s=time_s, sequence=number, name="")
            found.append(SimJob(job, job.work_s, job.curve))
    return found
