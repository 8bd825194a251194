"""The reference: elastic-fifo on a number of GPUs as one would write it with SimPy in an afternoon.

One process per job. On each arrival and end the scheduler works the shares out anew, in the words of the
policy: `min` to each job that still fits, in order of submission; then one GPU at a time, round and round
in order, to those below `max`, until none is free. It interrupts the jobs whose share changed. No
placement, no reasons, no history.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from batuta.core.job import JobId


class SimpyJob:
    __slots__ = ("end_s", "id", "left_s", "max", "min", "process", "share", "speeds", "submit_s")

    def __init__(
        self, job: JobId, submit_s: float, low: int, high: int, work_s: float, speeds: tuple[float, ...]
    ) -> None:
        self.id, self.submit_s, self.min, self.max = job, submit_s, low, high
        self.left_s, self.speeds = work_s, speeds
        self.share = 0
        self.end_s = float("nan")
        self.process: simpy.Process | None = None

    def speed(self) -> float:
        return self.speeds[min(self.share, len(self.speeds) - 1)]


class SimpyQueue:
    """All jobs that are there, in order of submission."""

    def __init__(self, gpus: int, begin_s: float = 0.0) -> None:
        self.env = simpy.Environment(begin_s)
        self.gpus = gpus
        self.jobs: list[SimpyJob] = []
        self.over: list[SimpyJob] = []
        self.events = 0
        """Arrivals, ends, and changes of a job's share."""

    def submit(self, job: SimpyJob) -> None:
        job.process = self.env.process(self._life(job))

    def resume(self, job: SimpyJob) -> None:
        """Adds a job that is already there, with its share. In order of submission."""
        self.jobs.append(job)
        job.process = self.env.process(self._run(job))

    def _life(self, job: SimpyJob) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(job.submit_s - self.env.now)
        self.jobs.append(job)
        self.events += 1
        self.share_out()
        yield from self._run(job)

    def _run(self, job: SimpyJob) -> Generator[simpy.Event, Any, None]:
        env = self.env
        while True:
            speed, begun_s = job.speed(), env.now
            try:
                yield env.timeout(job.left_s / speed) if speed else env.event()
                break
            except simpy.Interrupt:
                job.left_s = max(0.0, job.left_s - speed * (env.now - begun_s))
        job.end_s = env.now
        self.jobs.remove(job)
        self.over.append(job)
        self.events += 1
        self.share_out()

    def share_out(self) -> None:
        free = self.gpus
        share: dict[SimpyJob, int] = {}
        for job in self.jobs:
            if job.min <= free:
                share[job] = job.min
                free -= job.min
            else:
                share[job] = 0
        growing = [job for job in self.jobs if 0 < share[job] < job.max]
        while free and growing:
            for job in growing:
                share[job] += 1
                free -= 1
                if not free:
                    break
            growing = [job for job in growing if share[job] < job.max]
        active = self.env.active_process
        for job in self.jobs:
            if share[job] != job.share:
                job.share = share[job]
                self.events += 1
                if job.process is not active and job.process is not None:
                    job.process.interrupt()
