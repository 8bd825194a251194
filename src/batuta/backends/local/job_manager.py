"""Drives all jobs of this machine, and recovers those that a former server left on disk."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TypeAlias

from batuta.backends.local import processes
from batuta.backends.local.context import GpuOccupancy, Timing, gpus_of
from batuta.backends.local.job_files import JobFiles, read_record
from batuta.backends.local.job_run import JobRun
from batuta.backends.local.live_run import LiveRun
from batuta.backends.local.supervisor.process_tree import CannotTell
from batuta.backends.local.watch import RunnerEvent
from batuta.core.cluster import Placement
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.prediction import fit_together

_log = logging.getLogger(__name__)
_WARN_EVERY_S = 10.0  # that jobs cannot be looked at is logged so often
_READ_WITHIN_S = 0.05
REPORTS_PART = "progress reports"  # a job runs on when what it reports cannot be measured


class JobManager:
    """Drives jobs: those that leave first, then those that wait for what they leave."""

    def __init__(self, occupancy: GpuOccupancy, timing: Timing, is_ready: Callable[[], bool], fence: Fence) -> None:
        self.runs: dict[JobId, JobRun] = {}  # of every living job that was ever wanted to run
        self.owners: dict[str, tuple[JobId, int]] = {}  # by run id: job and rank
        self._occupancy = occupancy
        self._timing = timing
        self._is_ready = is_ready
        self._fence = fence
        self._active: dict[JobId, JobRun] = {}  # those with something to do, in the order in which it was asked for
        self._dirty: set[JobId] = set()
        self._heard: dict[tuple[JobRun, LiveRun, int], None] = {}
        """Replicas of which there was news, to be looked at once however much there was."""
        self._poll_s = self._look_s = self._warn_s = -math.inf

    def touch(self, job_run: JobRun) -> None:
        """Something else is wanted of a job."""
        self._active[job_run.job.id] = job_run
        self._dirty.add(job_run.job.id)

    def hear(self, news: RunnerEvent) -> None:
        """Something has happened to a replica."""
        job, rank = self.owners.get(news.run_id, ("", -1))
        if news.ended:
            self.owners.pop(news.run_id, None)
        job_run = self.runs.get(job)
        run = None if job_run is None else job_run.run
        if job_run is not None and run is not None and run.record.run_id(rank) == news.run_id:
            self._heard[job_run, run, rank] = None
            self._dirty.add(job)

    def take_from_others(self, given: Mapping[JobId, Placement]) -> None:
        """Who wants GPUs that are given to another has lost them before, to a failure of the GPU say."""
        for job, placement in given.items():
            gpus, share = gpus_of(placement), self.runs[job].job.share
            for other in self._active.values():
                if other.wanted is None or other.job.id in given or (share and other.job.share):
                    continue
                if gpus & gpus_of(other.wanted):
                    other.wanted = None
                    self._dirty.add(other.job.id)

    def next_s(self) -> float:
        """When something is to be done even if nothing happens until then."""
        if not self._active:
            return math.inf
        first_s = min(job_run.due_s for job_run in self._active.values())
        if any(job_run.run is not None for job_run in self._active.values()):
            first_s = min(first_s, self._poll_s, self._look_s)
        return first_s

    def drive(self, now_s: float) -> None:
        """Drives all jobs for which something has happened or a time has come."""
        looks, polls = now_s >= self._look_s, now_s >= self._poll_s
        heard, self._heard = self._heard, {}
        dirty, self._dirty = self._dirty, set()
        for job_run, run, rank in heard:
            with self._fenced(job_run, now_s):
                try:
                    run.look(rank)
                except CannotTell:
                    self._heard[job_run, run, rank] = None  # it is news until it could be looked at
                    raise
        if polls:
            self._read_reports(now_s)
        for job_run in list(self._active.values()):
            with self._fenced(job_run, now_s):
                if job_run.run is not None and looks:
                    job_run.run.look_at_all()
                if job_run.run is not None and polls:
                    with self._fence.around(REPORTS_PART):
                        job_run.tell(now_s)
                if looks or job_run.job.id in dirty or job_run.due_s <= now_s:
                    job_run.drive(now_s)
        if looks:
            self._look_s = now_s + self._timing.look_s
        if polls:
            self._poll_s = now_s + self._timing.poll_s
        ready = self._is_ready()
        for job_run in list(self._active.values()):
            with self._fenced(job_run, now_s):
                if ready and job_run.needs_start and self._is_free(job_run):
                    job_run.drive(now_s, can_start=True)
            if job_run.is_over:
                self.runs.pop(job_run.job.id, None)
            if not job_run.has_run and not job_run.needs_start and (job_run.is_over or not job_run.is_ending):
                self._active.pop(job_run.job.id, None)

    def _read_reports(self, now_s: float) -> None:
        """Reads what all jobs report, and fits their curves side by side: one by one it takes far longer."""
        meters, give_up = [], time.monotonic() + _READ_WITHIN_S
        running = [job_run for job_run in self._active.values() if job_run.run is not None]
        for job_run in sorted(running, key=attrgetter("read_s")):
            if time.monotonic() >= give_up:
                break  # these come first at the next poll: jobs that report without end hold up no start of others
            with self._fence.around(REPORTS_PART):
                meters.append(job_run.read(now_s))
        with self._fence.around(REPORTS_PART):
            fit_together(meters)

    @contextlib.contextmanager
    def _fenced(self, job_run: JobRun, now_s: float) -> Iterator[None]:
        """Ends one job, and not all, at an unexpected error. Of a job that cannot be looked at nothing is concluded."""
        try:
            yield
        except CannotTell as problem:
            self._cannot_tell(job_run, problem, now_s)
        except Exception as error:
            job = job_run.job.id
            _log.exception("job %s is given up: something went wrong that should not", job, extra={"job": job})
            job_run.give_up(now_s, error)

    def _cannot_tell(self, job_run: JobRun, problem: CannotTell, now_s: float) -> None:
        job = job_run.job.id
        job_run.due_s = min(job_run.due_s, now_s + self._timing.retry_s)
        self._dirty.add(job)
        if now_s >= self._warn_s:
            self._warn_s = now_s + _WARN_EVERY_S
            _log.warning("job %s cannot be looked at now: %s; tried again", job, problem, extra={"job": job})

    def close(self, now_s: float, within_s: float, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        """Stops all that runs, so that a next server finds it stopped; after `within_s` without grace."""
        for job_run in self._active.values():
            job_run.is_closing = True  # also those that were just about to start
        running = [job_run for job_run in self._active.values() if job_run.has_run]
        for job_run in running:
            self.touch(job_run)
        give_up_s, was_killed = now_s + within_s, False
        while True:
            self.drive(now_s)
            if not any(job_run.has_run for job_run in running):
                return
            if now_s >= give_up_s:
                if was_killed:
                    return
                give_up_s, was_killed = now_s + self._timing.overdue_s, True
                for job_run in running:
                    job_run.kill(now_s)
            wait(min(give_up_s, self.next_s()))
            now_s = clock()

    def _is_free(self, job_run: JobRun) -> bool:
        """Whether the GPUs that a job wants are free, or used only by shares that stay beside its share."""
        assert job_run.wanted is not None
        others = (self.runs[job] for job in self._occupancy.on(job_run.wanted))
        return all(
            job_run.job.share is not None and other.job.share is not None and not other.is_going for other in others
        )


_WITHIN_S = 15.0
_UNSETTLED = frozenset((Phase.STARTING, Phase.RESIZING))


ExpectedJob: TypeAlias = tuple[Placement | None, Phase]  # what the World says of a living job


def expected_jobs(world: World) -> dict[JobId, ExpectedJob]:
    """What `resume` wants to know, from a World that was recovered."""
    jobs = world.jobs
    return {
        job: (placement, jobs.phase_of(row))
        for row, (job, placement) in enumerate(zip(jobs.ids, jobs.placements, strict=True))
    }


def recover(job_run: JobRun, files: JobFiles, expected: ExpectedJob, now_s: float) -> None:
    """Brings a job's run state to where the last server left it; to drive it does the rest.

    The World was durable before any command was carried out: what it says is wanted. What runs is on disk,
    and so is how it ended, if it did.
    """
    placement, phase = expected
    job_run.is_ending = phase is Phase.STOPPING
    job_run.wanted = None if job_run.is_ending else placement
    numbers = files.run_numbers()
    clear_runs(files, numbers[:-1])
    record = read_record(files, numbers[-1]) if numbers else None
    if phase is Phase.BROKEN:
        # It has lost GPUs, and the scheduler has not decided yet what to do about it.
        job_run.wanted = None if record is None else record.placement
    job_run.remember(now_s, record)
    if record is not None:
        job_run.find(record, is_announced=phase not in _UNSETTLED)
    else:
        clear_runs(files, numbers[-1:])  # nothing was started: its record was not even written


def clear_runs(files: JobFiles, numbers: Iterable[int]) -> None:
    """Kills the processes of runs that are not wanted any more, and discards the runs. CannotTell: try again."""
    numbers = list(numbers)
    stop_runs(files, numbers)
    for number in numbers:
        files.discard_run(number)


def stop_runs(files: JobFiles, numbers: Iterable[int]) -> None:
    """Kills the processes of runs; what they have written stays."""
    found = [folder for number in numbers for folder in files.replica_folders_of(number)]
    alive = [replica for folder in found if (replica := processes.adopt(folder)) is not None]
    for replica in alive:
        processes.kill(replica)
    give_up = time.monotonic() + _WITHIN_S
    while any(replica.is_running for replica in alive) and time.monotonic() < give_up:
        time.sleep(0.01)
    for folder in found:
        processes.clean_up(folder)
