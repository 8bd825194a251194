"""Finds the smallest changes that would start a job now."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from batuta.core.decide import SchedulerProfile
from batuta.core.event import JobWished
from batuta.core.job import DesiredState, JobId
from batuta.core.world import World
from batuta.engine.suggest.changes import (
    fewer_gpus,
    jobs_that_end,
    more_nodes,
    more_quota,
    nodes_back,
    other_queues,
    other_types,
    queue_released,
    without_wishes,
)
from batuta.engine.suggest.suggestion import Remedy, Suggestion, Trials

MOST_TRIALS = 80
"""A trial is a whole decision: in a cluster with ten thousand jobs it takes a good part of a second."""
_LARGE = 2_000
_FEW_TRIALS = 30


def suggest(
    world: World,
    now_s: float,
    job: JobId,
    rules_of: Callable[[], SchedulerProfile],
    most_trials: int | None = None,
) -> tuple[Suggestion, ...]:
    """Changes of which each alone starts a waiting job; what its user can do comes first.

    Nothing for a job that has GPUs, is not there, or starts anyway. With `most_trials` used up the rest is
    not looked at.
    """
    if job not in world.jobs or world.jobs.placements[world.jobs.row(job)] is not None:
        return ()
    if most_trials is None:
        most_trials = MOST_TRIALS if world.jobs.n <= _LARGE else _FEW_TRIALS
    trials = Trials(world, now_s, job, rules_of, most_trials)
    if trials.start_after(()) is not None:
        return ()
    return tuple(_all(trials))


def _all(trials: Trials) -> Iterator[Suggestion]:
    again = _started_again(trials)
    if again is not None:
        yield again
    for way in (
        fewer_gpus,
        other_types,
        other_queues,
        without_wishes,
        jobs_that_end,
        queue_released,
        more_quota,
        nodes_back,
        more_nodes,
    ):
        yield from way(trials)


def _started_again(trials: Trials) -> Suggestion | None:
    """For a job that is parked, is tried out first, or waits after a failure."""
    jobs = trials.world.jobs
    row = jobs.row(trials.job.id)
    if jobs.wish_of(row) not in (DesiredState.PARK, DesiredState.TRY) and jobs.not_before_s[row] <= trials.now_s:
        return None
    return trials.suggestion(
        Remedy.STARTED_AGAIN,
        (),
        [JobWished(trials.now_s, trials.job.id, DesiredState.RUN, cause="suggestion")],
    )
