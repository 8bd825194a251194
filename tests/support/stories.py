"""Endless journals that make sense, for those who care for how events are kept and not for what is decided.

The same seed tells the same story, event by event: a reader knows what a killed writer was about to write.
"""

from collections import deque
from collections.abc import Iterator
from random import Random

import numpy as np

from batuta.core import event as ev
from batuta.core.cluster import Node, Placement, Span
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job, JobId, JobState
from batuta.core.plan import Command, Decisions, Plan, Preempt, Start
from batuta.core.reason import Evidence, Reason
from tests.support.quotas import short

APPLICATIONS = ("resnet", "bert", "gpt")


class Story:
    """A cluster of nodes with 8 GPUs; every job gets one GPU, reports some times, and ends."""

    def __init__(self, seed: int, nodes: int = 2, reports: int = 6, waiting: int = 8) -> None:
        self.rng = Random(seed)
        self.free = [(f"n{k:03d}", gpu) for k in range(nodes) for gpu in range(8)]
        self.nodes, self.reports, self.patience = nodes, reports, waiting
        self.count, self.now_s, self.submitted = 0, 0.0, 0
        self.waiting: deque[Job] = deque()
        self.running: dict[JobId, tuple[str, int]] = {}
        self.left: dict[JobId, int] = {}
        self.living: dict[JobId, Job] = {}

    def __iter__(self) -> Iterator[ev.Event]:
        for event in self._events():
            self.count += 1
            yield event

    def _events(self) -> Iterator[ev.Event]:
        for k in range(self.nodes):
            yield ev.NodeAdded(0.0, Node(f"n{k:03d}", 8))
        yield ev.QuotaSet(0.0, short(("default", {"*": 8 * self.nodes})))
        while True:
            self.now_s += self.rng.expovariate(1.0)
            if len(self.waiting) < self.patience:
                yield ev.JobSubmitted(self.now_s, self._submit())
            yield from self._plan()
            for job in self.rng.sample(sorted(self.running), min(4, len(self.running))):
                yield self._report(job)

    def _submit(self) -> Job:
        largest = self.rng.choice((1, 2, 4, 8))
        speeds = tuple(round(float(n) ** 0.9, 3) for n in range(largest + 1))
        name, self.submitted = f"job-{self.submitted:06d}", self.submitted + 1
        job = Job(
            name,
            self.now_s,
            max=largest,
            name=f"train {name}",
            user=self.rng.choice(("ada", "grace", "alan")),
            application=self.rng.choice(APPLICATIONS),
            curve=SpeedCurve(speeds),
            work_s=self.rng.lognormvariate(8, 1),
        )
        self.waiting.append(job)
        self.living[name] = job
        return job

    def _plan(self) -> Iterator[ev.Event]:
        commands: list[Command] = []
        if self.running and self.rng.random() < 0.05:
            victim = self.rng.choice(sorted(self.running))
            self.free.append(self.running.pop(victim))
            self.waiting.append(self.living[victim])
            commands.append(Preempt(victim, Reason.PREEMPTED, (("before", 1),)))
        while self.waiting and self.free and len(commands) < 4:
            job, (node, gpu) = self.waiting.popleft(), self.free.pop()
            if any(command.job == job.id for command in commands):
                self.waiting.append(job)
                self.free.append((node, gpu))
                break
            self.running[job.id] = (node, gpu)
            self.left.setdefault(job.id, self.reports)
            commands.append(Start(job.id, Placement((Span(node, (gpu,)),)), Reason.ADMITTED, (("gpus", 1),)))
        if commands:
            decisions = self._decide()
            yield ev.Planned(self.now_s, Plan(self.count, self.now_s, "story", tuple(commands), (), decisions))
            for command in commands:
                if isinstance(command, Start):
                    yield ev.JobStarted(self.now_s, command.job)

    def _decide(self) -> Decisions:
        ids = tuple(self.living)
        highs = [job.max for job in self.living.values()]
        gpus = np.array([int(job in self.running) for job in ids], dtype=np.int64)
        ones = np.ones(len(ids), dtype=np.int64)
        special: dict[int, tuple[Reason, Evidence]] = {}
        for row in range(0, len(ids), 7):
            gain_s = self.rng.uniform(0, 100)
            special[row] = (
                Reason.CHANGE_DOES_NOT_PAY,
                (("wanted", highs[row]), ("gain_s", gain_s), ("cost_s", 30.0)),
            )
        return Decisions(
            ids, gpus, None, ones, ones, np.array(highs), None, (8 * self.nodes,), (len(self.free),), special
        )

    def _report(self, job: JobId) -> ev.Event:
        if self.left[job]:
            self.left[job] -= 1
            return ev.JobProgressed(self.now_s, job, self.rng.uniform(0, 1e4))
        self.free.append(self.running.pop(job))
        del self.living[job], self.left[job]
        return ev.JobEnded(self.now_s, job, self.rng.choice((JobState.SUCCEEDED, JobState.FAILED)))
