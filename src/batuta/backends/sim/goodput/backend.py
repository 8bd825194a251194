"""The simulated backend of the goodput model: every job runs a whole round with the GPUs that it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from batuta.backends.sim.goodput import estimators
from batuta.backends.sim.goodput.application import Application, load_applications, save_points
from batuta.backends.sim.goodput.job import FixedBatch, GoodputJob
from batuta.backends.sim.goodput.model import Exploration
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.curve import SpeedCurve, node_sizes
from batuta.core.job import Job, JobId, JobState
from batuta.core.plan import Command, Preempt, Stop
from batuta.spec.problem import InputError, Problem, did_you_mean


@dataclass(frozen=True, slots=True)
class JobLengths:
    """Each job runs for a share of its epochs, drawn evenly between two shares."""

    least: float = 1.0
    most: float = 1.0
    seed: int = 0

    @staticmethod
    def parse(text: str, seed: int = 0) -> JobLengths:
        """`0.2-1`: between a fifth of the epochs and all of them."""
        least, _, most = text.partition("-")
        try:
            found = JobLengths(float(least), float(most or least), seed)
        except ValueError:
            found = JobLengths(0.0)
        if not 0 < found.least <= found.most <= 1:
            raise InputError.of(f"lengths {text!r} are no shares of a job's epochs", fix="for example 0.2-1")
        return found

    def draw(self, epochs: Sequence[int]) -> list[int]:
        """Epochs of each job, at least one."""
        if self.least == self.most == 1.0:
            return list(epochs)
        shares = np.random.default_rng(self.seed).uniform(self.least, self.most, len(epochs))
        return [max(1, round(whole * share)) for whole, share in zip(epochs, shares.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Tuning:
    """How jobs tune their batch size."""

    every_size: bool = False  # whether they may have any number of GPUs; otherwise only sizes that fill nodes
    explores: Exploration = field(default_factory=Exploration)  # how far beyond measured sizes they may go


@dataclass(slots=True)
class GoodputBackend:
    """One run of the goodput replay. Events have their true time, but come at the end of the round."""

    jobs: Sequence[Job]
    nodes: Sequence[Node]
    models: dict[JobId, estimators.ObservedJob]
    round_s: float
    estimator: estimators.Estimator | None  # the source of the scheduler's estimates; None: it gets none
    tunes: bool = False  # whether jobs tune their batch size
    now_s: float = 0.0
    lost_gpu_s: dict[JobId, float] = field(default_factory=dict)
    _index: dict[NodeName, int] = field(default_factory=dict)
    _alive: dict[JobId, estimators.ObservedJob] = field(default_factory=dict)
    _reported: dict[JobId, SpeedCurve] = field(default_factory=dict)
    _arrived: int = 0
    _truth: estimators.Estimator | None = None

    @staticmethod
    def of(
        sims: Sequence[SimJob],
        nodes: Sequence[Node],
        profiles: Path,
        round_s: float,
        restart_s: float,
        knowledge: str,
        tuning: Tuning | None = None,
        lengths: JobLengths = JobLengths(),  # noqa: B008  (frozen)
    ) -> GoodputBackend:
        """`tuning` says how jobs choose their batch size; None: they keep that of their request."""
        applications = load_applications(profiles)
        gpus = sum(node.gpus for node in nodes)
        jobs: list[Job] = []
        models: dict[JobId, estimators.ObservedJob] = {}
        problems: list[Problem] = []
        width = max((node.gpus for node in nodes), default=1)
        sizes = tuple(range(1, gpus + 1)) if tuning and tuning.every_size else node_sizes(gpus, width)
        estimator = (
            estimators.make_tuned_estimator(knowledge, sizes, width, tuning.explores)
            if tuning
            else estimators.make_fixed_estimator(knowledge)
        )
        epochs = lengths.draw([_epochs_of(sim, applications) for sim in sims])
        for sequence, sim in enumerate(sims):
            request = sim.goodput
            application = applications.get(request.application) if request else None
            if request is None or application is None:
                problems.append(_unknown(sim, applications))
                continue
            if not application.efficiency.covers(request.batch_size):
                problems.append(Problem(f"job {sim.job.id}: batch size {request.batch_size} was never measured"))
                continue
            batch = application.profile.max_batch if tuning else request.batch_size
            mode = estimator.mode(application, sim.job.id, batch) if estimator else FixedBatch(batch)
            model = GoodputJob(application, mode, restart_s, epochs[sequence])
            most = max(1, min(application.profile.max_gpus(batch), gpus))
            observed = models[sim.job.id] = estimators.ObservedJob(sim.job.id, model, batch, most)
            estimate = estimator.estimate(observed) if estimator else estimators.Estimate(sim.job.curve, sim.job.work_s)
            job = replace(
                sim.job,
                sequence=sequence,
                max=max(most, request.num_replicas),
                curve=estimate.curve,
                work_s=estimate.remaining_s,
                restart_s=restart_s,
            )
            jobs.append(_sized(job, tuple(n for n in sizes if n <= most)) if tuning else job)
        if problems:
            raise InputError(problems)
        return GoodputBackend(jobs, nodes, models, round_s, estimator, tuning is not None)

    def __post_init__(self) -> None:
        self._index = {node.name: i for i, node in enumerate(self.nodes)}

    def opening(self) -> list[ev.Event]:
        return [ev.NodeAdded(0.0, node) for node in self.nodes]

    def quiet(self) -> bool:
        return self._arrived == len(self.jobs) and not any(job.model.gpus for job in self._alive.values())

    def waiting(self) -> int:
        return len(self._alive) + len(self.jobs) - self._arrived

    def close(self) -> None:
        """Saves interpolated step times, so that the next run starts faster."""
        if self.tunes:
            for observed in {observed.application: observed for observed in self.models.values()}.values():
                self.alone_s(observed.id, 1.0)  # interpolates the true step times, which are saved below
        save_points({observed.application: observed.model.application for observed in self.models.values()})

    def alone_s(self, job: JobId, gpus: float) -> float:
        """Time from start to end on a fair share, from the true model."""
        observed = self.models[job]
        fresh = GoodputJob(observed.model.application, FixedBatch(observed.batch_size), epochs=observed.model.epochs)
        fresh_job = estimators.ObservedJob(job, fresh, observed.batch_size, observed.max_gpus)
        estimate = self._true().estimate(fresh_job)
        n = max(1, min(int(gpus), observed.max_gpus))
        speed = max(estimate.curve.speeds[1 : n + 1]) * min(gpus, 1.0)
        return estimate.remaining_s / speed + observed.model.restart_s

    def _true(self) -> estimators.Estimator:
        if self._truth is None:
            gpus, width = sum(node.gpus for node in self.nodes), max(node.gpus for node in self.nodes)
            self._truth = (
                estimators.TunedBatchOracle(node_sizes(gpus, width), width)
                if self.tunes
                else estimators.FixedBatchOracle()
            )
        return self._truth

    def next_events(self, until_s: float | None) -> list[ev.Event]:
        if not self.waiting() or (until_s is None and self.quiet()):
            return []
        if until_s is not None:
            end_s = max(until_s, self.now_s)
        else:
            # No job waits for a decision: jump to the end of the round in which the next job arrives.
            ahead = self.jobs[self._arrived : self._arrived + 1]
            submit_s = ahead[0].submit_s if ahead and not self._alive else 0.0
            end_s = max(math.ceil(submit_s / self.round_s) * self.round_s, self.now_s + self.round_s)
        found: list[ev.Event] = []
        before = list(self._alive.values())
        for observed in before:
            self._advance(observed, end_s - self.now_s, found)
        if self.estimator is not None:
            # All measurements of the round count before any estimate is made from them.
            alive = [observed for observed in before if observed.id in self._alive]
            self.estimator.end_round(alive)
            for observed in alive:
                self._report(observed, end_s, found)
        self.now_s = end_s
        while self._arrived < len(self.jobs) and self.jobs[self._arrived].submit_s <= end_s:
            job = self.jobs[self._arrived]
            self._arrived += 1
            observed = self._alive[job.id] = self.models[job.id]
            found.append(ev.JobSubmitted(job.submit_s, job))
            self._report(observed, end_s, found)
        found.sort(key=lambda event: event.time_s)
        return [*found, ev.TimePassed(end_s)]

    def execute(self, commands: Sequence[Command], now_s: float) -> list[ev.Event]:
        done: list[ev.Event] = []
        for command in commands:
            model = self.models[command.job].model
            if isinstance(command, Preempt | Stop):
                model.set_placement((), ())
                if isinstance(command, Stop):
                    del self._alive[command.job]
                    done.append(ev.JobEnded(now_s, command.job, JobState.CANCELLED))
                continue
            counts = command.placement.counts()
            if model.set_placement(tuple(counts.values()), tuple(self._index[node] for node in counts)):
                lost = model.restart_s * model.gpus
                self.lost_gpu_s[command.job] = self.lost_gpu_s.get(command.job, 0.0) + lost
            if not model.restart_left_s:
                # Nothing to wait for: restarts are free, or only the GPUs within the same nodes are others.
                done.append(ev.JobStarted(now_s, command.job))
        return done

    def _advance(self, observed: estimators.ObservedJob, seconds: float, found: list[ev.Event]) -> None:
        model, begun_s = observed.model, self.now_s
        if not model.placement:
            return
        restart_left_s = model.restart_left_s
        ended_after_s = model.advance(seconds)
        if restart_left_s and not model.restart_left_s:
            found.append(ev.JobStarted(begun_s + restart_left_s, observed.id))
        if ended_after_s is not None:
            del self._alive[observed.id]
            if self.estimator is not None:
                self.estimator.job_ended(observed)
            found.append(ev.JobEnded(begun_s + ended_after_s, observed.id, JobState.SUCCEEDED))

    def _report(self, observed: estimators.ObservedJob, now_s: float, found: list[ev.Event]) -> None:
        """Reports the estimated time left; the curve only when it has changed."""
        if self.estimator is None:
            return
        estimate = self.estimator.estimate(observed)
        curve = None if self._reported.get(observed.id) == estimate.curve else estimate.curve
        if curve is not None:
            self._reported[observed.id] = curve
        found.append(ev.JobProgressed(now_s, observed.id, estimate.remaining_s, curve, outlook=estimate.outlook))


def _sized(job: Job, sizes: tuple[int, ...]) -> Job:
    """The job with these sizes, whatever its rigid request was."""
    low, high = sizes[0], sizes[-1]
    wanted = max(n for n in sizes if n <= max(job.size, low))
    return replace(job, size=wanted, min=low, max=high, sizes=sizes)


def _epochs_of(sim: SimJob, applications: dict[str, Application]) -> int:
    application = applications.get(sim.goodput.application) if sim.goodput else None
    return application.efficiency.epochs if application else 1


def _unknown(sim: SimJob, applications: dict[str, Application]) -> Problem:
    if sim.goodput is None:
        return Problem(f"job {sim.job.id} has no application and batch size, others of this workload have")
    name = sim.goodput.application
    return Problem(f"job {sim.job.id}: no profile of application {name}", fix=did_you_mean(name, [*applications]))
