"""A World forked into the simulator: what runs runs on where it is, what waits waits, and time goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from batuta.backends.sim.failures import FailureRecord
from batuta.backends.sim.foresight.lengths import believed_left_s
from batuta.backends.sim.machine import SimBackend
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve
from batuta.core.job import NO_RESTART_S, Job, JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.trial_events import never_fits
from batuta.core.wish import Wish
from batuta.core.world import World


class Measured(NamedTuple):
    """What a job turned out to be."""

    curve: SpeedCurve
    restart_s: float


@dataclass(frozen=True, slots=True)
class Outside:
    """What comes from outside while a future goes on, in the order of time."""

    arrivals: Sequence[SimJob] = ()
    script: Sequence[ev.Event] = ()
    """What people do: changes of quota, of requests, new nodes."""
    failures: Sequence[FailureRecord] = ()


NOTHING = Outside()


def twin_at(world: World, now_s: float) -> World:
    """An independent World at this time, without the jobs that are over: nobody here asks for those."""
    twin = world.fork()
    twin.past.clear()
    apply(twin, ev.TimePassed(max(now_s, twin.now_s), cause="fork"))
    return twin


def machines_of(
    twin: World,
    left_s: Mapping[JobId, float],
    outside: Outside = NOTHING,
    decides_at_once: bool = True,
    measured: Mapping[JobId, Measured] | None = None,
) -> SimBackend:
    """Simulated machines that go on where the World is. Each living job has so much work left.

    `measured`: the truth about jobs, where it is not what the World believes.

    `decides_at_once`: whether something may have happened that nobody has decided upon yet.
    """
    now_s, jobs = twin.now_s, twin.jobs
    nodes = [*twin.nodes.nodes, *_nodes_to_come(outside.script)]
    script = [*_opening(twin, decides_at_once), *outside.script, *_releases(twin), *_trial_ends(twin)]
    script.sort(key=lambda event: event.time_s)
    backend = SimBackend(outside.arrivals, nodes, failures=outside.failures, script=script, now_s=now_s)
    begun_s, resized_s = jobs.f("last_start_s"), jobs.f("last_resize_s")
    for row, job in enumerate(jobs.jobs):
        phase, placement = jobs.phase_of(row), jobs.placements[row]
        curve, restart_s = (measured or {}).get(job.id) or (job.curve, float(jobs.f("restart_s")[row]))
        sim = SimJob(told(job, believed_left_s(twin, row), restart_s), left_s[job.id], curve)
        last_s = max(_or_zero(begun_s[row]), _or_zero(resized_s[row]))
        if phase is Phase.STOPPING:
            continue
        if placement is None or phase is Phase.BROKEN:
            # What is broken makes no progress until the next decision gives it whole GPUs.
            backend.adopt(sim, None, begun_s=now_s)
        elif phase is Phase.RUNNING:
            backend.adopt(sim, placement, begun_s=last_s)
        else:
            backend.adopt(sim, placement, begun_s=last_s, ready_s=last_s + sim.job.restart_s)
    return backend


def told(job: Job, believed_s: float, restart_s: float) -> Job:
    """The job as the simulated machines know it.

    Who cannot be restarted has to start once all the same, and that takes no time that anybody knows.
    """
    known_s = 0.0 if restart_s >= NO_RESTART_S else restart_s
    return replace(job, work_s=believed_s, restart_s=known_s)


def _opening(twin: World, decides_at_once: bool) -> list[ev.Event]:
    """What is about to happen: ends that are under way, and a decision that may be due."""
    found: list[ev.Event] = [
        ev.JobEnded(twin.now_s, job.id, JobState.CANCELLED)
        for row, job in enumerate(twin.jobs.jobs)
        if twin.jobs.phase_of(row) is Phase.STOPPING
    ]
    return [*found, ev.TimePassed(twin.now_s, cause="fork")] if decides_at_once else found


def _releases(twin: World) -> list[ev.Event]:
    """When jobs that back off may run again, and nodes be asked again."""
    times = {time_s for time_s in twin.jobs.f("not_before_s").tolist() if time_s > twin.now_s}
    times |= {avoided.until_s for avoided in twin.avoided.values() if avoided.until_s > twin.now_s}
    return [ev.TimePassed(time_s, cause="release") for time_s in sorted(times)]


def _trial_ends(twin: World) -> list[ev.Event]:
    """When jobs that are tried out are queued at the latest, or over, if that was all that was wanted."""
    found: list[ev.Event] = []
    for job_id, measured in twin.trials.items():
        row = twin.jobs.row(job_id)
        plan = twin.jobs.jobs[row].trial
        if plan is None or twin.jobs.wish_of(row) is not Wish.TRY:
            continue
        end_s = max(twin.now_s, twin.jobs.jobs[row].submit_s + plan.budget_s)
        if plan.only:
            found.append(ev.JobEnded(end_s, job_id, JobState.SUCCEEDED, cause="trial"))
        elif not never_fits(measured, plan.sizes):
            found.append(ev.JobWished(end_s, job_id, Wish.RUN, cause="trial"))
    return found


def _nodes_to_come(script: Sequence[ev.Event]) -> list[Node]:
    return [event.node for event in script if isinstance(event, ev.NodeAdded)]


def _or_zero(time_s: float) -> float:
    return 0.0 if math.isnan(time_s) else float(time_s)
