"""Where the GPU time went: used, lost, idle; by queue, user and day. What `batuta report` shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeAlias, TypeVar

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import DesiredState, Job, JobId
from batuta.core.job_table import Phase
from batuta.core.plan import Stop
from batuta.core.utilisation import mean_busy
from batuta.core.world import World

_A = TypeVar("_A", bound="_Amounts")
DAY_S = 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Amounts:
    """Amounts that can be added up field by field."""

    def add(self, other: Self, factor: float = 1.0) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name) * factor)


@dataclass(slots=True)
class JobUsage(_Amounts):
    """GPU time of jobs, in GPU-seconds; `waiting` is what they requested and did not hold."""

    used_gpu_s: float = 0.0  # held by jobs that ran and kept their progress, as far as the GPUs were busy
    unused_gpu_s: float = 0.0  # held by the same jobs while the GPUs were not busy; 0 where utilisation is not measured
    restarting_gpu_s: float = 0.0  # held by jobs that were starting, being resized, or had lost a part of their GPUs
    lost_gpu_s: float = 0.0  # held by jobs while they made progress that was lost after the last checkpoint
    waiting_gpu_s: float = 0.0

    @property
    def held_gpu_s(self) -> float:
        return self.used_gpu_s + self.unused_gpu_s + self.restarting_gpu_s + self.lost_gpu_s


@dataclass(slots=True)
class UnallocatedGpus(_Amounts):
    """The capacity, and the GPU time that no job held, in GPU-seconds."""

    capacity_gpu_s: float = 0.0  # GPUs of all nodes in the cluster
    idle_gpu_s: float = 0.0  # free, and no waiting job could have used it, or the scheduler was about to allocate it
    fragmented_gpu_s: float = 0.0  # free, and too few in one place for the smallest job that waited for such GPUs
    unavailable_gpu_s: float = 0.0  # unhealthy, cordoned, or used by other systems


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """One day, UTC."""

    day: str
    unallocated: UnallocatedGpus
    job_usage: JobUsage
    queues: Mapping[str, JobUsage]
    users: Mapping[str, JobUsage]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage by day: on each day, what jobs held and what was unallocated add up to the capacity."""

    from_s: float
    to_s: float
    days: tuple[DailyUsage, ...]
    notes: tuple[str, ...] = ()  # restrictions that the reader should know

    def unallocated(self) -> UnallocatedGpus:
        return _sum(UnallocatedGpus(), (day.unallocated for day in self.days))

    def job_usage(self) -> JobUsage:
        return _sum(JobUsage(), (day.job_usage for day in self.days))

    def queues(self) -> dict[str, JobUsage]:
        return _merged(day.queues for day in self.days)

    def users(self) -> dict[str, JobUsage]:
        """Return the usage by user; the empty name is for jobs without a user."""
        return _merged(day.users for day in self.days)

    def plain(self) -> dict[str, Any]:
        return {
            "from_s": self.from_s,
            "to_s": self.to_s,
            "total": _plain(self.unallocated(), self.job_usage()),
            **_plain_groups(self.queues(), self.users()),
            "days": [
                {"day": day.day, **_plain(day.unallocated, day.job_usage), **_plain_groups(day.queues, day.users)}
                for day in self.days
            ],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class UsageTotals:
    """Adds up usage by day, queue and user, within a time range."""

    from_s: float
    to_s: float
    _unallocated: dict[int, UnallocatedGpus] = field(default_factory=dict)
    _jobs: dict[tuple[int, str, str], JobUsage] = field(default_factory=dict)

    def add_job_time(self, queue: str, user: str, what: str, from_s: float, to_s: float, gpus: float) -> None:
        """Add GPUs of a user's job in a queue, from one time to another, to a field of `JobUsage`."""
        for day, seconds in self._parts(from_s, to_s):
            own = self._jobs.setdefault((day, queue, user), JobUsage())
            setattr(own, what, getattr(own, what) + gpus * seconds)

    def add_unallocated(self, from_s: float, to_s: float, gpus: UnallocatedGpus) -> None:
        """Add what no job held; `gpus` has numbers of GPUs in place of GPU-seconds."""
        for day, seconds in self._parts(from_s, to_s):
            self._unallocated.setdefault(day, UnallocatedGpus()).add(gpus, seconds)

    def report(self, notes: tuple[str, ...] = ()) -> UsageReport:
        days = sorted({*self._unallocated, *(day for day, _, _ in self._jobs)})
        return UsageReport(self.from_s, self.to_s, tuple(self._day(day) for day in days), notes)

    def _day(self, number: int) -> DailyUsage:
        queues: dict[str, JobUsage] = {}
        users: dict[str, JobUsage] = {}
        for (day, queue, user), own in sorted(self._jobs.items()):
            if day == number:
                queues.setdefault(queue, JobUsage()).add(own)
                users.setdefault(user, JobUsage()).add(own)
        name = f"{_EPOCH + timedelta(days=number):%Y-%m-%d}"
        unallocated = self._unallocated.get(number, UnallocatedGpus())
        return DailyUsage(name, unallocated, _sum(JobUsage(), queues.values()), queues, users)

    def _parts(self, from_s: float, to_s: float) -> Iterable[tuple[int, float]]:
        """Yield the days of an interval, and its seconds on each, within the time range."""
        at_s, end_s = max(from_s, self.from_s), min(to_s, self.to_s)
        while at_s < end_s:
            day = int(at_s // DAY_S)
            until_s = min(end_s, (day + 1) * DAY_S)
            yield day, until_s - at_s
            at_s = until_s


def _sum(total: _A, parts: Iterable[_A]) -> _A:
    for part in parts:
        total.add(part)
    return total


def _merged(groups: Iterable[Mapping[str, JobUsage]]) -> dict[str, JobUsage]:
    found: dict[str, JobUsage] = {}
    for group in groups:
        for name, usage in group.items():
            found.setdefault(name, JobUsage()).add(usage)
    return dict(sorted(found.items()))


def _plain_groups(queues: Mapping[str, JobUsage], users: Mapping[str, JobUsage]) -> dict[str, Any]:
    return {
        "queues": [{"queue": queue, **_plain(usage)} for queue, usage in queues.items()],
        "users": [{"user": user, **_plain(usage)} for user, usage in users.items()],
    }


def _plain(*parts: UnallocatedGpus | JobUsage) -> dict[str, float]:
    return {one.name: getattr(part, one.name) for part in parts for one in fields(part)}


def count_unallocated(world: World) -> UnallocatedGpus:
    """Return current numbers of GPUs, in the fields of GPU-seconds."""
    nodes, layout = world.nodes, world.layout
    found = UnallocatedGpus()
    free_by_type: dict[int, list[int]] = {}
    for i, node in enumerate(nodes.nodes):
        if world.lost >> i & 1:
            continue
        found.capacity_gpu_s += node.gpus
        if layout.usable >> i & 1 and layout.free[i]:
            free_by_type.setdefault(nodes.type_of[i], []).append(layout.free[i].bit_count())
    waiting = list(_waiting(world)) if free_by_type else []
    for kind, free in free_by_type.items():
        fragmented = _fragmented(free, waiting, nodes.types[kind])
        found.fragmented_gpu_s += fragmented
        found.idle_gpu_s += sum(free) - fragmented
    # A shared GPU counts once.
    held = int(world.jobs.gpus().sum()) - sum(card.shares - 1 for card in layout.cards.values())
    found.unavailable_gpu_s = found.capacity_gpu_s - held - found.idle_gpu_s - found.fragmented_gpu_s
    return found


def _waiting(world: World) -> Iterator[Job]:
    """Yield the jobs that would run if GPUs were allocated to them."""
    jobs = world.jobs
    for row in (jobs.held == 0).nonzero()[0].tolist():
        job = jobs.jobs[row]
        if jobs.wish_of(row) is DesiredState.RUN and jobs.phase_of(row) is Phase.WAITING and not job.cpu_only:
            yield job


def _fragmented(free: list[int], waiting: list[Job], gpu_type: str) -> int:
    """Return how many of the free GPUs of a type, by node, the smallest waiting job could not use."""
    fitting = (job for job in waiting if not job.gpu_types or gpu_type in dict(job.gpu_types))
    job = min(fitting, key=lambda job: (job.min, job.gpus_per_replica), default=None)
    if job is None:
        return 0
    each = job.gpus_per_replica
    useful = sum(own - own % each for own in free)
    return sum(free) - useful if useful >= job.min else sum(free)


_IGNORED = (
    *(ev.JobProgressed, ev.TransitionTimed, ev.TimePassed, ev.PolicySet, ev.JobForgotten),
    ev.HealthChanged,
    ev.ActionTaken,
)
"""Events that change the GPUs of no job."""

_KeepsProgress: TypeAlias = Callable[[Job], bool]


@dataclass(slots=True)
class _Track:
    """One unfinished job since its last change."""

    queue: str
    user: str
    since_s: float
    gpus: float = 0.0
    busy: float = 1.0  # the measured utilisation of its GPUs; 1 where it is not known
    runs: bool = False
    lacks: int = 0
    interval_s: float | None = None
    run_since_s: float = 0.0
    progress: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Intervals of the current run: from, to, GPUs, and their utilisation."""
    saved_s: float = -math.inf  # when its last reported checkpoint was complete
    is_saving: bool = False  # a plan ended its run and the job was asked to save; the checkpoint is not confirmed yet


class UsageAccounting:
    """Accounts for GPU time while it applies the events of a journal. It owns the World from now on.

    Progress is accounted when its run has ended, because only then it is known how much of it was kept: for
    a job that is asked to save before a resize, when it has saved, or when it starts again without. Every GPU
    is counted once: a shared GPU is divided among its jobs. Of what a running job holds, the measured
    utilisation counts as used.
    """

    def __init__(self, world: World, from_s: float, to_s: float) -> None:
        self._world = world
        self._totals = UsageTotals(from_s, to_s)
        self._at_s = world.now_s
        self._tracks: dict[JobId, _Track] = {}
        self._unallocated: UnallocatedGpus | None = None  # what no job holds now; None when it must be counted again
        for job in world.jobs.ids:
            self._update(job, lambda _: False)

    def take(self, event: ev.Event) -> None:
        if isinstance(event, _IGNORED):
            apply(self._world, event)
            return
        if isinstance(event, ev.JobCheckpointed):
            apply(self._world, event)
            self._note_checkpoint(event)
            return
        self._advance(event.time_s)
        apply(self._world, event)
        self._unallocated = None
        keeps_progress = _keeps_progress(event)
        for job in self._affected(event):
            if job in self._world.jobs:
                self._update(job, keeps_progress)
            elif (track := self._tracks.pop(job, None)) is not None:
                self._book(track)
                # A finished job needs no checkpoint.
                self._end_run(track, lost_s=0.0)

    def finish(self, notes: tuple[str, ...] = ()) -> UsageReport:
        """Return the report up to the end of the time range, as if nothing happened after the last event."""
        self._advance(self._totals.to_s)
        for track in self._tracks.values():
            self._book(track)
            self._end_run(track, lost_s=0.0)
        return self._totals.report(notes)

    def _advance(self, now_s: float) -> None:
        """Account for what no job has held since the last change."""
        if now_s <= self._at_s:
            return
        if self._unallocated is None:
            self._unallocated = count_unallocated(self._world)
        if self._unallocated.capacity_gpu_s:
            self._totals.add_unallocated(self._at_s, now_s, self._unallocated)
        self._at_s = now_s

    def _update(self, name: JobId, keeps_progress: _KeepsProgress) -> None:
        """Compare an unfinished job with its track, and account for the time up to a change."""
        jobs, row = self._world.jobs, self._world.jobs.row(name)
        job, phase = jobs.jobs[row], jobs.phase_of(row)
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = _Track(job.queue, job.user, self._at_s)
            begun_s = jobs.run_start_s(row)
            track.run_since_s = self._at_s if begun_s is None else begun_s
            saved_s = jobs.checkpoints.get(name)
            track.saved_s = -math.inf if saved_s is None else saved_s
        gpus, runs = _held(self._world, row), phase is Phase.RUNNING
        wants = jobs.wish_of(row) is DesiredState.RUN and phase is not Phase.STOPPING and not job.cpu_only
        lacks = max(0, job.size - jobs.held.item(row)) if wants else 0
        known = mean_busy(self._world, row, self._at_s) if runs else None
        busy = 1.0 if known is None else known
        before = (track.gpus, track.runs, track.lacks, track.queue, track.busy)
        if (gpus, runs, lacks, job.queue, busy) == before:
            return
        self._book(track)
        if track.runs and not runs:
            if keeps_progress(job) and job.keeps_size_until_saved:
                track.is_saving = True
            else:
                self._end_run(track, 0.0 if keeps_progress(job) else _lost_s(track))
        elif runs and not track.runs:
            if track.is_saving:
                # It starts again without a confirmed checkpoint.
                self._end_run(track, _lost_s(track))
            track.run_since_s = self._at_s
        if job.queue != track.queue:
            self._end_run(track, lost_s=0.0)
        track.queue, track.gpus, track.runs, track.lacks, track.busy = job.queue, gpus, runs, lacks, busy
        # For a job that reports its checkpoints, only those count.
        track.interval_s = None if job.keeps_size_until_saved else job.checkpoint_interval_s

    def _note_checkpoint(self, event: ev.JobCheckpointed) -> None:
        """Keep the progress of a job before a checkpoint, whatever happens to it."""
        track = self._tracks.get(event.job)
        if track is None or event.saved_s is None:
            return
        track.saved_s = max(track.saved_s, event.saved_s)
        if track.is_saving and track.progress and track.saved_s >= track.progress[-1][1]:
            self._end_run(track, lost_s=0.0)

    def _book(self, track: _Track) -> None:
        """Account for the interval since the last change of a job."""
        now_s = self._at_s
        since_s, track.since_s = track.since_s, now_s
        if now_s <= since_s:
            return
        if track.lacks:
            self._totals.add_job_time(track.queue, track.user, "waiting_gpu_s", since_s, now_s, track.lacks)
        if track.runs:
            track.progress.append((since_s, now_s, track.gpus, track.busy))
        elif track.gpus:
            self._totals.add_job_time(track.queue, track.user, "restarting_gpu_s", since_s, now_s, track.gpus)

    def _end_run(self, track: _Track, lost_s: float) -> None:
        """Account for the progress of a run: the last `lost_s` seconds of it are lost."""
        track.is_saving = False
        kept_until_s = track.progress[-1][1] - lost_s if track.progress else 0.0
        owner = track.queue, track.user
        for from_s, to_s, gpus, busy in track.progress:
            cut_s = min(max(kept_until_s, from_s), to_s)
            self._totals.add_job_time(*owner, "used_gpu_s", from_s, cut_s, gpus * busy)
            self._totals.add_job_time(*owner, "unused_gpu_s", from_s, cut_s, gpus * (1.0 - busy))
            self._totals.add_job_time(*owner, "lost_gpu_s", cut_s, to_s, gpus)
        track.progress.clear()

    def _affected(self, event: ev.Event) -> Iterable[JobId]:
        """Return the jobs whose GPUs an event may change."""
        # A job that joins or leaves a shared GPU changes what the others hold of it.
        if not self._world.layout.cards:
            if isinstance(event, ev.Planned):
                return [command.job for command in event.plan.commands]
            if isinstance(event, ev.JobSubmitted | ev.JobChanged):
                return (event.job.id,)
            if isinstance(event, ev.JobStarted | ev.JobInterrupted | ev.JobEnded | ev.JobWished):
                return (event.job,)
        return [*self._tracks, *(job for job in self._world.jobs.ids if job not in self._tracks)]


def _lost_s(track: _Track) -> float:
    """Return how much of an interrupted run came after its last checkpoint.

    A job that saves only on request loses all since its start, or since the last reported checkpoint, when
    it got no request or did not save.
    """
    end_s = track.progress[-1][1] if track.progress else track.since_s
    ran_s = max(0.0, end_s - track.run_since_s)
    lost_s = ran_s if track.interval_s is None else ran_s % track.interval_s
    return max(0.0, min(lost_s, end_s - track.saved_s))


def _keeps_progress(event: ev.Event) -> _KeepsProgress:
    """Return whether a job keeps its progress when an event ends its run: it was asked to save first.

    A plan asks; a crash does not. A job that a plan stops for good does not continue.
    """
    if not isinstance(event, ev.Planned):
        return lambda _: False
    stopped = {command.job for command in event.plan.commands if isinstance(command, Stop)}
    return lambda job: job.checkpoint_interval_s is None or job.keeps_size_until_saved or job.id in stopped


def _held(world: World, row: int) -> float:
    """Return the GPUs of a job; of a shared GPU, its part."""
    placement = world.jobs.placements[row]
    if placement is None:
        return 0.0
    if world.jobs.jobs[row].share is None:
        return float(placement.size)
    node, gpus = placement.spans[0]
    card = world.layout.cards.get((world.nodes.index[node], gpus[0]))
    return 1.0 / card.shares if card is not None else 1.0
