"""A span of the journal as a workload: who came when, what each job took, what people did meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from batuta.backends.sim.failures import FailureKind, FailureRecord
from batuta.backends.sim.foresight.fork import Measured, Outside, told
from batuta.backends.sim.foresight.future import Future, Watch
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Placement
from batuta.core.command import Migrate, Resize, Start
from batuta.core.job import Job, JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.world import PastJob, World, speed_at
from batuta.prediction.duration_progress import remaining

_FROM_OUTSIDE = (
    *(ev.JobChanged, ev.JobWished, ev.QuotaSet),
    *(ev.NodeAdded, ev.NodeChanged, ev.OthersUse, ev.NodeCordoned, ev.NodeUncordoned),
)
"""What people and the cluster did, which would have happened under any policy."""
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of a job by now."""

    work_s: float
    """Since the beginning of the span or its submission, on one GPU of the reference type."""
    measured: Measured
    """Its speeds, and how long a start of it took."""
    ended: bool
    """Whether it ended by itself within the span: then its work is known, else it is believed."""
    reports: bool
    """Whether it ever reported progress."""


@dataclass(frozen=True, slots=True)
class Span:
    """What happened from one moment to another."""

    begin: World
    """As it was; nobody changes it."""
    from_s: float
    to_s: float
    arrivals: tuple[Job, ...]
    outside: Outside
    truth: Mapping[JobId, Truth]
    """Of all that lived within it."""
    really: Future
    notes: tuple[str, ...] = ()

    def sims(self) -> list[SimJob]:
        """The jobs that arrived, as the scheduler was told of them and as they were."""
        return [
            SimJob(told(job, job.work_s, own.measured.restart_s), own.work_s, own.measured.curve)
            for job in self.arrivals
            if (own := self.truth.get(job.id)) is not None
        ]


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

    def measured(self, job: Job) -> Measured:
        """With the median of all jobs where a job was never started; what is believed where nobody was."""
        known = self.took_s.get(job.id) or [each for own in self.took_s.values() for each in own]
        return Measured(job.curve, statistics.median(known) if known else job.restart_s)


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
        return sum(
            speed_at(world, job, placement) * seconds for placement, seconds in self.done.get(job.id, ())
        )

    def close(self, now_s: float) -> None:
        for job, (placement, since_s) in self._running.items():
            self.done.setdefault(job, []).append((placement, max(now_s - since_s, 0.0)))
        self._running.clear()


def read_span(begin: World, events: Iterable[ev.Event], from_s: float, to_s: float) -> Span:
    """Goes through the events after `from_s`, up to `to_s`, on a fork of the World of that time."""
    world, segments, starts = begin.fork(), _Segments(), _Starts()
    really = Future(from_s)
    watch = Watch(world, really, None, set())
    segments.look(world, list(world.jobs.ids), from_s)
    arrivals, script = list[Job](), list[ev.Event]()
    failures, reporting = list[FailureRecord](), set(world.progress)
    over, crashes, changes = dict[JobId, PastJob](), 0, 0
    for event in events:
        if event.time_s > to_s:
            break
        apply(world, event)
        watch.saw(world, event)
        segments.look(world, _concerned(world, event), getattr(event, "ended_s", None) or event.time_s)
        starts.look(event)
        if isinstance(event, ev.JobEnded) and event.job in world.past:
            # It may be forgotten before the span is over.
            over[event.job] = world.past[event.job]
        if isinstance(event, ev.JobSubmitted):
            arrivals.append(event.job)
        elif isinstance(event, _FROM_OUTSIDE):
            script.append(event)
        elif isinstance(event, ev.JobProgressed):
            reporting.add(event.job)
        failures += _failure(event)
        crashes += isinstance(event, ev.JobInterrupted)
        changes += isinstance(event, ev.PolicySet)
    apply(world, ev.TimePassed(max(to_s, world.now_s), cause="replay"))
    segments.close(to_s)
    really.until_s = to_s
    truth = _truth(world, over, segments, starts, reporting)
    notes = _notes(truth, crashes, changes)
    return Span(begin, from_s, to_s, tuple(arrivals), Outside((), script, failures), truth, really, notes)


def _runs_on(world: World, job: JobId) -> Placement | None:
    if job not in world.jobs:
        return None
    row = world.jobs.row(job)
    return world.jobs.placements[row] if world.jobs.phase_of(row) is Phase.RUNNING else None


def _concerned(world: World, event: ev.Event) -> Iterator[JobId]:
    """The jobs for which an event may make a difference."""
    if isinstance(event, ev.Planned):
        yield from (command.job for command in event.plan.commands)
    elif isinstance(event, ev.NodeLost | ev.NodeChanged | ev.GpuFailed | ev.OthersUse | ev.JobFound):
        yield from list(world.jobs.ids)
    else:
        job = getattr(event, "job", None)
        if job is not None:
            yield job.id if isinstance(job, Job) else job


def _failure(event: ev.Event) -> list[FailureRecord]:
    match event:
        case ev.NodeLost():
            return [FailureRecord(event.time_s, FailureKind.NODE_LOST, event.node)]
        case ev.NodeReturned():
            return [FailureRecord(event.time_s, FailureKind.NODE_RETURNED, event.node)]
        case ev.GpuFailed():
            return [FailureRecord(event.time_s, FailureKind.GPU_FAILED, event.node, event.gpu)]
        case ev.GpuRepaired():
            return [FailureRecord(event.time_s, FailureKind.GPU_REPAIRED, event.node, event.gpu)]
    return []


def _truth(
    world: World,
    over: Mapping[JobId, PastJob],
    segments: _Segments,
    starts: _Starts,
    reporting: set[JobId],
) -> dict[JobId, Truth]:
    """Of the jobs that ended within the span, and of those that live on."""
    found = {}
    for job, past in over.items():
        ran_s, ended = segments.work_s(world, past.job), past.state is not JobState.CANCELLED
        # A job that was cancelled would have gone on; the wish to cancel it comes again.
        work_s = ran_s if ended else max(ran_s, past.job.work_s)
        found[job] = Truth(max(work_s, _LEAST_S), starts.measured(past.job), ended, job in reporting)
    for known in world.jobs.jobs:
        work_s = segments.work_s(world, known) + remaining(world, known.id).p50_s
        found[known.id] = Truth(max(work_s, _LEAST_S), starts.measured(known), False, known.id in reporting)
    return found


def _notes(truth: Mapping[JobId, Truth], crashes: int, changes: int) -> tuple[str, ...]:
    ended = sum(one.ended for one in truth.values())
    notes = [
        f"the work of {ended} jobs that ended is what they ran, with speeds and starts as measured",
    ]
    if ended < len(truth):
        notes.append(f"{len(truth) - ended} others take as long as is believed of them")
    notes.append("jobs that reported progress do so again once they run")
    if crashes:
        notes.append(f"{crashes} crashes are not repeated: what they cost counts as work")
    if changes:
        notes.append(f"the policy was changed {changes} times meanwhile")
    return tuple(notes)
