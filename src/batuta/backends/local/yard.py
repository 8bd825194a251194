"""All jobs that this machine has to do with, and whose turn it is."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from batuta.backends.local.job_run import JobRun
from batuta.backends.local.live_run import LiveRun
from batuta.backends.local.site import Occupancy, Timing, gpus_of
from batuta.backends.local.watch import News
from batuta.core.cluster import Placement
from batuta.core.job import JobId
from batuta.prediction import fit_together

_log = logging.getLogger(__name__)


class Yard:
    """Drives jobs: those that leave first, then those that wait for what they leave."""

    def __init__(self, occupancy: Occupancy, timing: Timing, is_ready: Callable[[], bool]) -> None:
        self.machines: dict[JobId, JobRun] = {}
        """Of every living job that was ever wanted to run."""
        self.owners: dict[str, tuple[JobId, int]] = {}
        """By run id: job and rank."""
        self._occupancy = occupancy
        self._timing = timing
        self._is_ready = is_ready
        self._active: dict[JobId, JobRun] = {}
        """Those with something to do, in the order in which it was asked for."""
        self._dirty: set[JobId] = set()
        self._heard: dict[tuple[JobRun, LiveRun, int], None] = {}
        """Replicas of which there was news, to be looked at once however much there was."""
        self._poll_s = self._look_s = -math.inf

    def touch(self, machine: JobRun) -> None:
        """Something else is wanted of a job."""
        self._active[machine.job.id] = machine
        self._dirty.add(machine.job.id)

    def hear(self, news: News) -> None:
        """Something has happened to a replica."""
        job, rank = self.owners.get(news.run_id, ("", -1))
        if news.ended:
            self.owners.pop(news.run_id, None)
        machine = self.machines.get(job)
        run = None if machine is None else machine.run
        if machine is not None and run is not None and run.record.run_id(rank) == news.run_id:
            self._heard[machine, run, rank] = None
            self._dirty.add(job)

    def take_from_others(self, given: Mapping[JobId, Placement]) -> None:
        """Who wants GPUs that are given to another has lost them before, to a failure of the GPU say."""
        for job, placement in given.items():
            gpus, share = gpus_of(placement), self.machines[job].job.share
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
        first_s = min(machine.due_s for machine in self._active.values())
        if any(machine.run is not None for machine in self._active.values()):
            first_s = min(first_s, self._poll_s, self._look_s)
        return first_s

    def drive(self, now_s: float) -> None:
        """Drives all jobs for which something has happened or a time has come."""
        looks, polls = now_s >= self._look_s, now_s >= self._poll_s
        heard, self._heard = self._heard, {}
        dirty, self._dirty = self._dirty, set()
        # What nobody thought of is the end of one job, and not of all.
        for machine, run, rank in heard:
            try:
                run.look(rank)
            except Exception as error:
                self._give_up(machine, now_s, error)
        if polls:
            self._read_reports(now_s)
        for machine in list(self._active.values()):
            try:
                if machine.run is not None and looks:
                    machine.run.look_at_all()
                if machine.run is not None and polls:
                    machine.poll(now_s)
                if looks or machine.job.id in dirty or machine.due_s <= now_s:
                    machine.drive(now_s)
            except Exception as error:
                self._give_up(machine, now_s, error)
        if looks:
            self._look_s = now_s + self._timing.look_s
        if polls:
            self._poll_s = now_s + self._timing.poll_s
        ready = self._is_ready()
        for machine in list(self._active.values()):
            try:
                if ready and machine.needs_start and self._is_free(machine):
                    machine.start(now_s)
            except Exception as error:
                self._give_up(machine, now_s, error)
            self._retire(machine)

    def _read_reports(self, now_s: float) -> None:
        """Reads what all jobs report, and fits their curves side by side: one by one it takes far longer."""
        meters = []
        for machine in list(self._active.values()):
            try:
                if machine.run is not None:
                    meters.append(machine.read(now_s))
            except Exception as error:
                self._give_up(machine, now_s, error)
        fit_together(meters)

    def _give_up(self, machine: JobRun, now_s: float, error: Exception) -> None:
        _log.error(
            "job %s is given up: something went wrong that should not",
            machine.job.id,
            exc_info=error,
            extra={"job": machine.job.id},
        )
        machine.give_up(now_s, error)

    def close(
        self, now_s: float, within_s: float, clock: Callable[[], float], wait: Callable[[float], object]
    ) -> None:
        """Stops all that runs, so that a next server finds it stopped; after `within_s` without grace."""
        for machine in self._active.values():
            machine.is_closing = True  # also those that were just about to start
        running = [machine for machine in self._active.values() if machine.run is not None]
        for machine in running:
            self.touch(machine)
        give_up_s, was_killed = now_s + within_s, False
        while True:
            self.drive(now_s)
            if not any(machine.run is not None for machine in running):
                return
            if now_s >= give_up_s:
                if was_killed:
                    return
                give_up_s, was_killed = now_s + self._timing.overdue_s, True
                for machine in running:
                    machine.kill(now_s)
            wait(min(give_up_s, self.next_s()))
            now_s = clock()

    def _is_free(self, machine: JobRun) -> bool:
        """Whether nobody is on the GPUs that a job wants, but shares that stay beside a share."""
        assert machine.wanted is not None
        others = (self.machines[job] for job in self._occupancy.on(machine.wanted))
        return all(
            machine.job.share is not None and other.job.share is not None and not other.is_going
            for other in others
        )

    def _retire(self, machine: JobRun) -> None:
        if machine.is_over:
            self.machines.pop(machine.job.id, None)
        if machine.run is None and not machine.needs_start and (machine.is_over or not machine.is_ending):
            self._active.pop(machine.job.id, None)
