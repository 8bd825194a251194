"""When jobs will start and finish: quantiles over several projections of the same World."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from batuta.backends.sim.forecast.projection import NO_EVENTS, ExternalEvents, Projection, backend_of, fork_at, project
from batuta.backends.sim.forecast.sampling import Effort, Sampler, quantile
from batuta.core.arrays import FloatArray
from batuta.core.decide import SchedulerProfile
from batuta.core.job import DesiredState, JobId
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.prediction.duration import Quantiles, remaining_work

P50, P90 = 0.5, 0.9
_NEVER = {DesiredState.PARK: "parked", DesiredState.CANCEL: "being cancelled", DesiredState.TRY: "tried out first"}
"""Why a job that is to be so does not end."""


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """Makes the scheduler profile of a projection: a new one for each, because quota keeps a cache."""

    make: Callable[[], SchedulerProfile]
    cadence: Cadence = field(default_factory=Cadence)


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When one job starts and finishes, in the World's time; infinite for not within the horizon."""

    job: JobId
    start_p50_s: float  # in the past for a job that has GPUs now: when it got them
    start_p90_s: float
    finish_p50_s: float
    finish_p90_s: float
    why: str = ""  # why there is no answer, where there is none
    coarse: bool = False  # by list scheduling, not by projections


@dataclass(frozen=True, slots=True)
class Forecast:
    """Quantiles over several projections of a World."""

    now_s: float
    jobs: tuple[JobForecast, ...]
    runs: int
    effort: Effort
    notes: tuple[str, ...] = ()  # the assumptions, for users to read

    def of(self, job: JobId) -> JobForecast | None:
        return next((one for one in self.jobs if one.job == job), None)


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """A World to project, with the estimates of its jobs and the sampler of their work."""

    world: World
    now_s: float
    known: Mapping[JobId, Quantiles]  # of every living job
    draws: Sampler
    effort: Effort = field(default_factory=Effort)
    external: Callable[[int], ExternalEvents] = lambda run: NO_EVENTS  # external events by number of the run
    awaited: Set[JobId] | None = None  # project until these jobs have ended; None: all living jobs
    cpu_until_s: float = math.inf  # the CPU clock of this thread at which the forecast stops with the runs that it has
    decides_at_once: bool = True


def projections_of(inputs: ForecastInput, source: ProfileSource, *, measured: bool = False) -> list[Projection]:
    """One projection for each run. The World stays as it is."""
    base, effort = fork_at(inputs.world, inputs.now_s), inputs.effort
    left_s = inputs.draws.left_s({job: inputs.known[job] for job in base.jobs.ids})
    awaited = frozenset(base.jobs.ids) if inputs.awaited is None else inputs.awaited
    found: list[Projection] = []
    for run in range(inputs.draws.runs):
        if found and found[-1].truncated and found[-1].until_s - base.now_s < effort.horizon_s:
            break  # Out of CPU time: use the runs so far.
        fork = base.fork()
        own = {job: float(values[run]) for job, values in left_s.items()}
        backend = backend_of(fork, own, inputs.external(run), inputs.decides_at_once)
        rules, until_s = source.make(), inputs.cpu_until_s
        found.append(
            project(fork, backend, rules, source.cadence, awaited, effort, cpu_until_s=until_s, measured=measured)
        )
    return found


def duration_estimates(world: World, now_s: float) -> dict[JobId, Quantiles]:
    fork = fork_at(world, now_s)
    return {job: remaining_work(fork, job) for job in fork.jobs.ids}


def summarise(inputs: ForecastInput, projections: Sequence[Projection]) -> Forecast:
    """Start and finish of every living job, as quantiles over projections."""
    world, now_s, known, effort = inputs.world, inputs.now_s, inputs.known, inputs.effort
    jobs, found = world.jobs, list[JobForecast]()
    ends = _table(projections, jobs.ids, lambda projection: projection.end_s)
    starts = _table(projections, jobs.ids, lambda projection: projection.start_s)
    for row, job in enumerate(jobs.ids):
        if jobs.placements[row] is not None:
            begun_s = float(jobs.last_start_s[row])
            start = (begun_s, begun_s)
        else:
            start = (quantile(starts[row], P50), quantile(starts[row], P90))
        finish = (quantile(ends[row], P50), quantile(ends[row], P90))
        if len(projections) == 1:
            finish = own_spread(max(start[0], now_s), finish[0], known[job])
        why = "" if finish[0] < math.inf else why_never(world, row, projections)
        found.append(JobForecast(job, *start, *finish, why))
    notes = []
    if effort.precision:
        notes.append(f"so many jobs are looked at coarsely: times are good to {effort.precision:.0%}")
    notes += truncation_notes(projections, now_s)
    if len(projections) == 1:
        notes.append("one run was possible: its spread is that of each job's own length")
    return Forecast(now_s, tuple(found), len(projections), effort, tuple(notes))


def truncation_notes(projections: Sequence[Projection], now_s: float) -> tuple[str, ...]:
    """How far was looked ahead, where that ended before all jobs did."""
    until_s = [projection.until_s for projection in projections if projection.truncated]
    return (f"looked {(min(until_s) - now_s) / 3600:.1f} h ahead: what comes later has no answer",) if until_s else ()


def own_spread(from_s: float, finish_s: float, known: Quantiles) -> tuple[float, float]:
    """P50 and P90 of an end, where only the job's own length is uncertain."""
    if finish_s == math.inf:
        return finish_s, finish_s
    longer = known.p90_s / known.p50_s if known.p50_s > 0 else 1.0
    return finish_s, from_s + (finish_s - from_s) * longer


def _table(
    projections: Sequence[Projection], ids: Sequence[JobId], times: Callable[[Projection], Mapping[JobId, float]]
) -> FloatArray:
    """A row for each job, a column for each projection."""
    rows = [[times(projection).get(job, math.inf) for projection in projections] for job in ids]
    return np.array(rows).reshape(len(ids), len(projections))


def why_never(world: World, row: int, projections: Sequence[Projection] = ()) -> str:
    """Return why a job has no finish."""
    if (why := _NEVER.get(world.jobs.wish_of(row))) is not None:
        return why
    if any(projection.truncated for projection in projections):
        return "later than was looked ahead"
    return "never, as things are"
