"""A span of the journal replayed under another policy: the same jobs, arrivals, failures and requests.

What each job really took is read from the journal first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batuta.backends.sim.failures import FailureKind, FailureRecord
from batuta.backends.sim.forecast.forecast import ProfileSource
from batuta.backends.sim.forecast.projection import (
    ExternalEvents,
    MeasuredJob,
    Projection,
    ProjectionWatcher,
    as_simulated,
    backend_of,
    fork_at,
    project,
)
from batuta.backends.sim.forecast.sampling import Effort, plan_effort
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.plan import Migrate, Resize, Start
from batuta.core.world import PastJob, World, speed_at
from batuta.prediction.duration import remaining_work

_EXTERNAL = (
    *(ev.JobChanged, ev.JobWished, ev.QuotaSet),
    *(ev.NodeAdded, ev.NodeChanged, ev.OthersUse, ev.NodeCordoned, ev.NodeUncordoned),
)
"""Events from users and the cluster, which happen under any policy."""
_FAILURES: dict[type[ev.Event], FailureKind] = {
    ev.NodeLost: FailureKind.NODE_LOST,
    ev.NodeReturned: FailureKind.NODE_RETURNED,
    ev.GpuFailed: FailureKind.GPU_FAILED,
    ev.GpuRepaired: FailureKind.GPU_REPAIRED,
}
_MIN_WORK_S = 1.0


@dataclass(frozen=True, slots=True)
class ActualJob:
    """A job as it really was."""

    work_s: float  # since the beginning of the span or its submission, on one GPU of the reference type
    measured: MeasuredJob  # its speeds, and how long a start of it took
    ended: bool  # whether it ended by itself within the span: then its work is known, otherwise estimated
    reports: bool
    saves: bool


@dataclass(frozen=True, slots=True)
class JournalSpan:
    """What happened from one moment to another."""

    begin: World  # the World at `from_s`; it is not changed
    from_s: float
    to_s: float
    arrivals: tuple[Job, ...]
    external: ExternalEvents
    truth: Mapping[JobId, ActualJob]  # of all that lived within it
    actual: Projection
    notes: tuple[str, ...] = ()

    def sims(self) -> list[SimJob]:
        """The jobs that arrived, as the scheduler knew them and as they were."""
        found = []
        for job in self.arrivals:
            if (own := self.truth.get(job.id)) is not None:
                known = as_simulated(job, job.work_s, own.measured.restart_s)
                known = replace(known, restartable=job.restartable or own.saves)
                found.append(SimJob(known, own.work_s, own.measured.curve))
        return found


@dataclass(slots=True)
class _Starts:
    """How long starts, resizes and migrations took, from the command to the first progress."""

    took_s: dict[JobId, list[float]] = field(default_factory=dict)
    _commanded_s: dict[JobId, float] = field(default_factory=dict)

    def look(self, event: ev.Event) -> None:
        if isinstance(event, ev.Planned):
            for command in event.plan.commands:
                if isinstance(command, Start | Resize | Migrate):
                    self._commanded_s[command.job] = event.time_s
                else:
                    self._commanded_s.pop(command.job, None)
        elif isinstance(event, ev.JobStarted):
            begun_s = self._commanded_s.pop(event.job, None)
            if begun_s is not None:
                self.took_s.setdefault(event.job, []).append(event.time_s - begun_s)

    def measured(self, job: Job) -> MeasuredJob:
        """With the median over all jobs for a job that never started; the estimate if none did."""
        known = self.took_s.get(job.id) or [each for own in self.took_s.values() for each in own]
        return MeasuredJob(job.curve, statistics.median(known) if known else job.restart_s)


@dataclass(slots=True)
class _Segments:
    """On which GPUs each job has run, and for how long."""

    done: dict[JobId, list[tuple[Placement, float]]] = field(default_factory=dict)
    _running: dict[JobId, tuple[Placement, float]] = field(default_factory=dict)

    def look(self, world: World, jobs: Iterable[JobId], now_s: float) -> None:
        for job in jobs:
            placement = _runs_on(world, job)
            before = self._running.get(job)
            if before is not None and before[0] is placement:
                continue
            if before is not None:
                self.done.setdefault(job, []).append((before[0], max(now_s - before[1], 0.0)))
                del self._running[job]
            if placement is not None:
                self._running[job] = (placement, now_s)

    def work_s(self, world: World, job: Job) -> float:
        """What a job has done, by the speeds that were known of it last."""
        return sum(speed_at(world, job, placement) * seconds for placement, seconds in self.done.get(job.id, ()))

    def close(self, now_s: float) -> None:
        for job, (placement, since_s) in self._running.items():
            self.done.setdefault(job, []).append((placement, max(now_s - since_s, 0.0)))
        self._running.clear()


def read_span(begin: World, events: Iterable[ev.Event], from_s: float, to_s: float) -> JournalSpan:
    """Goes through the events after `from_s`, up to `to_s`, on a fork of the World of that time."""
    world, segments, starts = begin.fork(), _Segments(), _Starts()
    actual = Projection(from_s)
    watch = ProjectionWatcher(world, actual, None, set())
    segments.look(world, list(world.jobs.ids), from_s)
    arrivals, script = list[Job](), list[ev.Event]()
    failures, reporting = list[FailureRecord](), set(world.progress)
    saving = set(world.jobs.checkpoints)
    over, crashes, changes = dict[JobId, PastJob](), 0, 0
    for event in events:
        if event.time_s > to_s:
            break
        apply(world, event)
        watch.saw(world, event)
        # The end of a job may be reported late.
        at_s = event.ended_s if isinstance(event, ev.JobEnded) and event.ended_s else event.time_s
        segments.look(world, _affected_jobs(world, event), at_s)
        starts.look(event)
        if isinstance(event, ev.JobEnded) and event.job in world.past:
            # The World may drop it before the span is over.
            over[event.job] = world.past[event.job]
        if isinstance(event, ev.JobSubmitted):
            arrivals.append(event.job)
        elif isinstance(event, _EXTERNAL):
            script.append(event)
        elif isinstance(event, ev.JobProgressed):
            reporting.add(event.job)
        elif isinstance(event, ev.JobCheckpointed):
            saving.add(event.job)
        if isinstance(event, ev.NodeLost | ev.NodeReturned | ev.GpuFailed | ev.GpuRepaired):
            kind, gpu = _FAILURES[type(event)], getattr(event, "gpu", 0)
            failures.append(FailureRecord(event.time_s, kind, event.node, gpu))
        crashes += isinstance(event, ev.JobInterrupted)
        changes += isinstance(event, ev.PolicySet)
    apply(world, ev.TimePassed(max(to_s, world.now_s), cause="replay"))
    segments.close(to_s)
    actual.until_s = to_s
    truth = _truth(world, over, segments, starts, reporting, saving)
    notes = _notes(truth, crashes, changes)
    return JournalSpan(begin, from_s, to_s, tuple(arrivals), ExternalEvents((), script, failures), truth, actual, notes)


def _runs_on(world: World, job: JobId) -> Placement | None:
    if job not in world.jobs:
        return None
    row = world.jobs.row(job)
    return world.jobs.placements[row] if world.jobs.phase_of(row) is Phase.RUNNING else None


def _affected_jobs(world: World, event: ev.Event) -> Iterator[JobId]:
    """The jobs that an event may affect."""
    if isinstance(event, ev.Planned):
        yield from (command.job for command in event.plan.commands)
    elif isinstance(event, ev.NodeLost | ev.NodeChanged | ev.GpuFailed | ev.OthersUse | ev.JobFound):
        yield from list(world.jobs.ids)
    else:
        job = getattr(event, "job", None)
        if job is not None:
            yield job.id if isinstance(job, Job) else job


def _truth(
    world: World,
    over: Mapping[JobId, PastJob],
    segments: _Segments,
    starts: _Starts,
    reporting: set[JobId],
    saving: set[JobId],
) -> dict[JobId, ActualJob]:
    """The jobs that ended within the span, and those that live on."""
    found = {}
    for job in (*(past.job for past in over.values()), *world.jobs.jobs):
        past, work_s = over.get(job.id), segments.work_s(world, job)
        ended = past is not None and past.state is not JobState.CANCELLED
        if past is None:
            work_s += remaining_work(world, job.id).p50_s
        elif not ended:
            # A cancelled job would have gone on; the request to cancel it is replayed.
            work_s = max(work_s, job.work_s)
        known = job.id in reporting, job.id in saving
        found[job.id] = ActualJob(max(work_s, _MIN_WORK_S), starts.measured(job), ended, *known)
    return found


def _notes(truth: Mapping[JobId, ActualJob], crashes: int, changes: int) -> tuple[str, ...]:
    ended = sum(one.ended for one in truth.values())
    notes = [f"the work of {ended} jobs that ended is what they ran, with speeds and starts as measured"]
    if ended < len(truth):
        notes.append(f"{len(truth) - ended} others take as long as is believed of them")
    notes.append("jobs that reported progress do so again once they run")
    if crashes:
        notes.append(f"{crashes} crashes are not repeated: what they cost counts as work")
    if changes:
        notes.append(f"the policy was changed {changes} times meanwhile")
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Means and sums over the jobs that ended within the span in reality and in every replay."""

    policy: str  # empty for what really happened
    jct_s: float
    wait_s: float  # without GPUs, since the beginning of the span
    gpu_hours: float
    restarts: int
    preemptions: int
    jobs: int
    missing: int  # jobs that ended in reality, and not here


def replay_span(span: JournalSpan, source: ProfileSource) -> Projection:
    fork = fork_at(span.begin, span.from_s)
    left_s = {job: span.truth[job].work_s for job in fork.jobs.ids}
    measured = {job: span.truth[job].measured for job in fork.jobs.ids}
    external = replace(span.external, arrivals=span.sims())
    backend = backend_of(fork, left_s, external, measured=measured)
    backend.reporting = {job for job, one in span.truth.items() if one.reports}
    awaited = {job for job, one in span.truth.items() if one.ended}
    effort = plan_effort(fork, len(span.truth))
    limits = Effort(precision=effort.precision if effort.runs == 1 else 0.0)
    return project(fork, backend, source.make(), source.cadence, awaited, limits)


def summarise_replays(span: JournalSpan, projections: Sequence[tuple[str, Projection]]) -> list[ReplaySummary]:
    """What really happened first, then each replay, over the same jobs."""
    ended = [job for job, one in span.truth.items() if one.ended]
    common = [job for job in ended if all(job in projection.end_s for _, projection in projections)]
    submit_s = {job.id: job.submit_s for job in (*span.begin.jobs.jobs, *span.arrivals)}
    rows = [("", span.actual), *projections]
    return [_row(policy, projection, common, ended, submit_s) for policy, projection in rows]


def _row(
    policy: str, projection: Projection, common: Sequence[JobId], ended: Sequence[JobId], submit_s: dict[JobId, float]
) -> ReplaySummary:
    count = len(common)
    return ReplaySummary(
        policy,
        sum(projection.end_s[job] - submit_s[job] for job in common) / count if count else math.nan,
        sum(projection.wait_s.get(job, 0.0) for job in common) / count if count else math.nan,
        sum(projection.gpu_s.get(job, 0.0) for job in common) / 3600.0,
        sum(projection.restarts_of.get(job, 0) for job in common),
        projection.preemptions,
        count,
        sum(job not in projection.end_s for job in ended),
    )
