"""The account of GPU time, kept while events of a journal are applied one after the other.

A job is followed from change to change: what it holds, whether it makes progress, what it lacks. Progress is
booked when its run ends, for only then is it known how much of it was kept. What no job holds is counted
after each event. Every GPU is counted once: cards that several jobs share are divided among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.command import Stop
from batuta.core.job import Job, JobId
from batuta.core.job_table import JobTable, Phase
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.report.waste import Account, Left, Waste
from batuta.report.waste_free import count_left

_LAST_START, _LAST_RESIZE = JobTable.F["last_start_s"], JobTable.F["last_resize_s"]
_QUIET = (
    *(ev.JobProgressed, ev.TransitionTimed, ev.TimePassed, ev.PolicySet, ev.JobForgotten),
    ev.HealthChanged,
)
"""Events that change nobody's GPUs."""

_Spared: TypeAlias = Callable[[Job], bool]


def _nobody(_: Job) -> bool:
    return False


@dataclass(slots=True)
class _Track:
    """One living job since its last change."""

    queue: str
    since_s: float
    gpus: float = 0.0
    runs: bool = False
    lacks: int = 0
    interval_s: float | None = None
    run_since_s: float = 0.0
    progress: list[tuple[float, float, float]] = field(default_factory=list)
    """Stretches of the run that goes on: from, to, GPUs."""


class WasteLedger:
    """Follows a World through its events. The World is the ledger's own from now on."""

    def __init__(self, world: World, from_s: float, to_s: float) -> None:
        self._world = world
        self._account = Account(from_s, to_s)
        self._at_s = world.now_s
        self._tracks: dict[JobId, _Track] = {}
        self._left: Left | None = None
        """What no job holds now; None when it has to be counted anew."""
        for job in world.jobs.ids:
            self._follow(job, _nobody)

    def take(self, event: ev.Event) -> None:
        """Applies the next event."""
        if isinstance(event, _QUIET):
            apply(self._world, event)
            return
        self._pass(event.time_s)
        apply(self._world, event)
        self._left = None
        spared = _spared(event)
        for job in self._concerned(event):
            if job in self._world.jobs:
                self._follow(job, spared)
            elif (track := self._tracks.pop(job, None)) is not None:
                self._book(track)
                # Whoever is over has no use for a checkpoint any more.
                self._end_run(track, lost_s=0.0)

    def finish(self, notes: tuple[str, ...] = ()) -> Waste:
        """The account up to the end of the span, as if nothing happened from the last event on."""
        self._pass(self._account.to_s)
        for track in self._tracks.values():
            self._book(track)
            self._end_run(track, lost_s=0.0)
        return self._account.close(notes)

    # ------------------------------------------------------------------------------------------- how it works

    def _pass(self, now_s: float) -> None:
        """Books what no job has held since the last change."""
        if now_s <= self._at_s:
            return
        if self._left is None:
            self._left = count_left(self._world)
        if self._left.capacity_gpu_s:
            self._account.leave(self._at_s, now_s, self._left)
        self._at_s = now_s

    def _follow(self, name: JobId, spared: _Spared) -> None:
        """Finds out what has become of a job that is alive."""
        jobs, row = self._world.jobs, self._world.jobs.row(name)
        job, phase = jobs.jobs[row], jobs.phase_of(row)
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = _Track(job.queue, self._at_s)
            track.run_since_s = self._began_s(row)
        gpus, runs = _held(self._world, row), phase is Phase.RUNNING
        wants = jobs.wish_of(row) is Wish.RUN and phase is not Phase.STOPPING
        lacks = max(0, job.size - jobs.i("gpus").item(row)) if wants else 0
        if (gpus, runs, lacks, job.queue) == (track.gpus, track.runs, track.lacks, track.queue):
            return
        self._book(track)
        if track.runs and not runs:
            self._end_run(track, 0.0 if spared(job) else _lost_s(track))
        elif runs and not track.runs:
            track.run_since_s = self._at_s
        if job.queue != track.queue:
            self._end_run(track, lost_s=0.0)
        track.queue, track.gpus, track.runs, track.lacks = job.queue, gpus, runs, lacks
        track.interval_s = job.checkpoint_interval_s

    def _book(self, track: _Track) -> None:
        """Closes the stretch since the last change of a job."""
        now_s = self._at_s
        since_s, track.since_s = track.since_s, now_s
        if now_s <= since_s:
            return
        if track.lacks:
            self._account.spend(track.queue, "waiting_gpu_s", since_s, now_s, track.lacks)
        if track.runs:
            track.progress.append((since_s, now_s, track.gpus))
        elif track.gpus:
            self._account.spend(track.queue, "restarting_gpu_s", since_s, now_s, track.gpus)

    def _end_run(self, track: _Track, lost_s: float) -> None:
        """Books the progress of a run: the last `lost_s` seconds of it are lost."""
        kept_until_s = track.since_s - lost_s
        for from_s, to_s, gpus in track.progress:
            cut_s = min(max(kept_until_s, from_s), to_s)
            self._account.spend(track.queue, "used_gpu_s", from_s, cut_s, gpus)
            self._account.spend(track.queue, "lost_gpu_s", cut_s, to_s, gpus)
        track.progress.clear()

    def _began_s(self, row: int) -> float:
        floats, _ = self._world.jobs.cells()
        begun = [s for s in (floats.item(_LAST_START, row), floats.item(_LAST_RESIZE, row)) if s == s]  # noqa: PLR0124
        return max(begun, default=self._at_s)

    def _concerned(self, event: ev.Event) -> Iterable[JobId]:
        """The jobs whose GPUs an event may change."""
        if self._world.layout.cards:
            # Who comes to a shared card, or leaves it, changes what the others hold of it.
            return [*self._tracks, *(job for job in self._world.jobs.ids if job not in self._tracks)]
        if isinstance(event, ev.Planned):
            return [command.job for command in event.plan.commands]
        if isinstance(event, ev.JobSubmitted | ev.JobChanged):
            return (event.job.id,)
        if isinstance(event, ev.JobStarted | ev.JobInterrupted | ev.JobEnded | ev.JobWished):
            return (event.job,)
        return [*self._tracks, *(job for job in self._world.jobs.ids if job not in self._tracks)]


def _lost_s(track: _Track) -> float:
    """How much of a run that was broken off came after its last checkpoint.

    A job that saves only when it is asked loses all since its start when nobody could ask.
    """
    ran_s = max(0.0, track.since_s - track.run_since_s)
    return ran_s if track.interval_s is None else ran_s % track.interval_s


def _spared(event: ev.Event) -> _Spared:
    """Says of a job whether it loses nothing by an event, though its run ends: it was asked to save first.

    A plan asks; a crash does not. Whom a plan ends for good, nobody wants to go on.
    """
    if not isinstance(event, ev.Planned):
        return _nobody
    stopped = {command.job for command in event.plan.commands if isinstance(command, Stop)}
    return lambda job: job.checkpoint_interval_s is None or job.id in stopped


def _held(world: World, row: int) -> float:
    """GPUs of a job; of a card that is shared, its part."""
    placement = world.jobs.placements[row]
    if placement is None:
        return 0.0
    if world.jobs.jobs[row].share is None:
        return float(placement.size)
    node, gpus = placement.spans[0]
    card = world.layout.cards.get((world.nodes.index[node], gpus[0]))
    return 1.0 / card.shares if card is not None else 1.0
