"""When jobs will start and finish: quantiles over several futures of the same World."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from batuta.backends.sim.foresight.effort import Effort
from batuta.backends.sim.foresight.fork import NOTHING, Outside, machines_of, twin_at
from batuta.backends.sim.foresight.future import Future, Limits, look_ahead
from batuta.backends.sim.foresight.lengths import Draws, Lengths, quantile
from batuta.core.arrays import FloatArray
from batuta.core.decide import Rules
from batuta.core.job import JobId
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.prediction.duration import Quantiles
from batuta.prediction.duration_progress import remaining

P50, P90 = 0.5, 0.9


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Who decides in a future, and when. Rules are made anew for each: quota keeps a memory."""

    make: Callable[[], Rules]
    cadence: Cadence = field(default_factory=Cadence)


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When one job starts and finishes, in the World's time; infinite for not within what was looked at."""

    job: JobId
    start_p50_s: float
    """In the past for a job that has GPUs now: when it got them."""
    start_p90_s: float
    finish_p50_s: float
    finish_p90_s: float
    why: str = ""
    """Why there is no answer, where there is none."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What several futures of a World came to."""

    now_s: float
    jobs: tuple[JobForecast, ...]
    runs: int
    effort: Effort
    notes: tuple[str, ...] = ()
    """What was assumed, for people to read."""

    def of(self, job: JobId) -> JobForecast | None:
        return next((one for one in self.jobs if one.job == job), None)


def _nothing_comes(run: int) -> Outside:
    return NOTHING


@dataclass(frozen=True, slots=True)
class Scene:
    """A World to look ahead from, with what is known of its jobs and the luck that they have."""

    world: World
    now_s: float
    known: Mapping[JobId, Quantiles]
    """Of every living job."""
    draws: Draws
    effort: Effort = field(default_factory=Effort)
    outside: Callable[[int], Outside] = _nothing_comes
    """By number of the run: what comes from outside."""
    awaited: Set[JobId] | None = None
    """Until these are over; None: all that live now."""
    cpu_until_s: float = math.inf
    """The thread's CPU time at which what there is has to do."""
    decides_at_once: bool = True


def futures_of(scene: Scene, book: Rulebook, *, measured: bool = False) -> list[Future]:
    """One future for each draw. The World stays as it is."""
    base, effort = twin_at(scene.world, scene.now_s), scene.effort
    left_s = scene.draws.left_s({job: scene.known[job] for job in base.jobs.ids})
    awaited = frozenset(base.jobs.ids) if scene.awaited is None else scene.awaited
    limits = Limits(effort.horizon_s, scene.cpu_until_s, effort.precision)
    found: list[Future] = []
    for run in range(scene.draws.runs):
        if found and found[-1].is_cut and found[-1].until_s - base.now_s < effort.horizon_s:
            break  # Out of time: the runs that there are have to do.
        twin = base.fork()
        own = {job: float(values[run]) for job, values in left_s.items()}
        backend = machines_of(twin, own, scene.outside(run), scene.decides_at_once)
        found.append(look_ahead(twin, backend, book.make(), book.cadence, awaited, limits, measured=measured))
    return found


def known_of(world: World, now_s: float, lengths: Lengths = remaining) -> dict[JobId, Quantiles]:
    """What is believed of the work of every living job."""
    twin = twin_at(world, now_s)
    return {job: lengths(twin, job) for job in twin.jobs.ids}


def summarise(scene: Scene, futures: Sequence[Future]) -> Forecast:
    """Start and finish of every living job, as quantiles over futures."""
    world, now_s, known, effort = scene.world, scene.now_s, scene.known, scene.effort
    jobs, found = world.jobs, list[JobForecast]()
    ends = _table(futures, jobs.ids, lambda future: future.end_s)
    starts = _table(futures, jobs.ids, lambda future: future.start_s)
    for row, job in enumerate(jobs.ids):
        if jobs.placements[row] is not None:
            begun_s = float(jobs.f("last_start_s")[row])
            start = (begun_s, begun_s)
        else:
            start = (quantile(starts[row], P50), quantile(starts[row], P90))
        finish = (quantile(ends[row], P50), quantile(ends[row], P90))
        if len(futures) == 1:
            finish = _own_spread(max(start[0], now_s), finish[0], known[job])
        why = "" if finish[0] < math.inf else _why_never(world, row, futures)
        found.append(JobForecast(job, *start, *finish, why))
    notes = []
    if effort.precision:
        notes.append(f"so many jobs are looked at coarsely: times are good to {effort.precision:.0%}")
    if any(future.is_cut for future in futures):
        ahead_s = min(future.until_s for future in futures if future.is_cut) - now_s
        notes.append(f"looked {ahead_s / 3600:.1f} h ahead: what comes later has no answer")
    if len(futures) == 1:
        notes.append("one run was possible: its spread is that of each job's own length")
    return Forecast(now_s, tuple(found), len(futures), effort, tuple(notes))


def _own_spread(from_s: float, finish_s: float, known: Quantiles) -> tuple[float, float]:
    """P50 and P90 of an end, where only the job's own length is uncertain."""
    if finish_s == math.inf:
        return finish_s, finish_s
    longer = known.p90_s / known.p50_s if known.p50_s > 0 else 1.0
    return finish_s, from_s + (finish_s - from_s) * longer


def _table(
    futures: Sequence[Future], ids: Sequence[JobId], times: Callable[[Future], Mapping[JobId, float]]
) -> FloatArray:
    """A row for each job, a column for each future."""
    return np.array([[times(future).get(job, math.inf) for future in futures] for job in ids]).reshape(
        len(ids), len(futures)
    )


def _why_never(world: World, row: int, futures: Sequence[Future]) -> str:
    wish = world.jobs.wish_of(row)
    if wish is Wish.PARK:
        return "parked"
    if wish is Wish.CANCEL:
        return "being cancelled"
    if wish is Wish.TRY:
        return "tried out first"
    if any(future.is_cut for future in futures):
        return "later than was looked ahead"
    return "never, as things are"
