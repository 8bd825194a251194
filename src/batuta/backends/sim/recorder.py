"""What is recorded while a simulation runs: segments, timeline, job results, the decisions on one job."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from batuta.backends.sim.result import JobResult, Segment, Timeline
from batuta.core.arrays import FloatArray
from batuta.core.cluster import Placement
from batuta.core.event import Event, GpuFailed, JobEnded, JobInterrupted, NodeLost, Planned
from batuta.core.job import JobId, JobState
from batuta.core.layout import Layout
from batuta.core.plan import Decision, Migrate, Plan, Preempt, Stop
from batuta.core.reason import Reason
from batuta.core.world import PastJob, World
from batuta.engine.observers import Observer

_NAN = float("nan")


class Recorder(Observer):
    """Records what an engine does. Segments of placements are optional: a big trace has millions."""

    def __init__(self, keep_segments: bool = True) -> None:
        self.events = 0
        self.segments: list[Segment] = []
        self.migrations: Counter[JobId] = Counter()
        self.preemptions: Counter[JobId] = Counter()
        self._keep_segments = keep_segments
        self._open: dict[JobId, tuple[float, Placement]] = {}
        self._ints = array("q")
        self._times = array("d")

    def saw(self, world: World, event: Event) -> None:
        self.events += 1
        if isinstance(event, Planned):
            self._commanded(event.time_s, event.plan)
        elif not self._open:
            return
        elif isinstance(event, JobEnded | JobInterrupted):
            self._close(event.job, event.time_s)
        elif isinstance(event, NodeLost | GpuFailed):
            self._lost_some(world, event.time_s)

    def _commanded(self, time_s: float, plan: Plan) -> None:
        for command in plan.commands:
            job = command.job
            self._close(job, time_s)
            if isinstance(command, Preempt):
                self.preemptions[job] += 1
                continue
            if isinstance(command, Migrate):
                self.migrations[job] += 1
            if self._keep_segments and not isinstance(command, Stop):
                self._open[job] = (time_s, command.placement)

    def _lost_some(self, world: World, time_s: float) -> None:
        """Jobs that lost GPUs go on with the others, or with none."""
        for job, (_, placement) in list(self._open.items()):
            left = world.jobs.placements[world.jobs.row(job)]
            if left != placement:
                self._close(job, time_s)
                if left is not None:
                    self._open[job] = (time_s, left)

    def _close(self, job: JobId, time_s: float) -> None:
        opened = self._open.pop(job, None)
        if opened is not None and time_s > opened[0]:
            begun_s, placement = opened
            if not placement.size:
                return  # segments are of GPUs, and a CPU-only job holds none
            self.segments.append(Segment(job, begun_s, time_s, placement.size, placement.nodes))

    def decided(self, world: World, plan: Plan) -> None:
        self.look(world, plan.time_s)

    def postponed(self, world: World) -> None:
        self.look(world, world.now_s)

    def look(self, world: World, time_s: float) -> None:
        """One row of the timeline; a later one at the same time replaces it."""
        times = self._times
        if times and times[-1] == time_s:
            del times[-1:], self._ints[-5:]
        times.append(time_s)
        running = int(np.count_nonzero(world.jobs.held))
        self._ints.extend((sum(world.capacity()), running, world.jobs.n, *free_and_fragmented(world.layout)))

    def timeline(self) -> Timeline:
        capacity, running, alive, free, fragmented = np.array(self._ints, dtype=np.int64).reshape(-1, 5).T
        share = fragmented / np.maximum(free, 1)
        return Timeline(np.array(self._times), capacity - free, capacity, running, alive - running, share)

    def close(self, world: World) -> None:
        """Ends the timeline, and the segments of jobs that still run."""
        self.look(world, world.now_s)
        for job in list(self._open):
            self._close(job, world.now_s)


def free_and_fragmented(layout: Layout) -> tuple[int, int]:
    """Free GPUs on open nodes, and how many of them lie on nodes that are partly in use."""
    usable = layout.usable
    free = fragmented = layout.free_gpus(usable)
    for gpus, nodes in layout.table.by_size.items():
        fragmented -= gpus * (layout.buckets[gpus] & nodes & usable).bit_count()
    return free, fragmented


def job_results(
    world: World,
    timeline: Timeline,
    recorder: Recorder,
    lost_gpu_s: dict[JobId, float],
    alone_s: Callable[[JobId, float], float],
) -> tuple[JobResult, ...]:
    """The results of all jobs, also of those that have not ended, in submit order."""
    jobs = world.jobs
    everyone = list(world.past.values())
    for row, job in enumerate(jobs.jobs):
        gpu_s, restarts = attained_gpu_s(world, row, world.now_s), int(jobs.restarts[row])
        everyone.append(PastJob(job, world.state_of(row), float(jobs.first_start_s[row]), _NAN, gpu_s, restarts))
    everyone.sort(key=lambda one: (one.job.submit_s, one.job.sequence, one.job.id))
    submits_s, ends_s = np.array([one.job.submit_s for one in everyone]), np.array([one.end_s for one in everyone])
    found = []
    for one, share in zip(everyone, Contention(timeline).shares(submits_s, ends_s).tolist(), strict=True):
        job = one.job
        fairness = _NAN
        if one.state is JobState.SUCCEEDED:
            fair_s = alone_s(job.id, share)
            fairness = (one.end_s - job.submit_s) / fair_s if fair_s > 0 else _NAN
        found.append(
            JobResult(
                id=job.id,
                application=job.application,
                user=job.user,
                queue=job.queue,
                state=one.state,
                size=job.gpus,
                submit_s=job.submit_s,
                first_start_s=one.first_start_s,
                end_s=one.end_s,
                gpu_s=one.attained_gpu_s,
                restarts=one.restarts,
                migrations=recorder.migrations[job.id],
                preemptions=recorder.preemptions[job.id],
                lost_gpu_s=lost_gpu_s.get(job.id, 0.0),
                fairness=fairness,
            )
        )
    return tuple(found)


def attained_gpu_s(world: World, row: int, now_s: float) -> float:
    """GPU-seconds that a living job has held up to this time."""
    jobs = world.jobs
    since_s = max(now_s - float(jobs.anchor_s[row]), 0.0)
    return float(jobs.attained_gpu_s[row]) + int(jobs.gpus()[row]) * since_s


class Contention:
    """The average fair share of the cluster in GPUs over a job's life."""

    def __init__(self, timeline: Timeline) -> None:
        self._time_s = timeline.time_s
        lengths = np.diff(timeline.time_s)
        alive: FloatArray = (timeline.running + timeline.pending).astype(np.float64)
        self._job_s = np.concatenate([[0.0], np.cumsum(alive[:-1] * lengths)])
        self._gpu_s = np.concatenate([[0.0], np.cumsum(timeline.capacity_gpus[:-1] * lengths)])

    def shares(self, from_s: FloatArray, to_s: FloatArray) -> FloatArray:
        """GPUs per living job, for each job; 1 where nothing is known. As arrays: traces are long."""
        shares = np.ones(len(from_s))
        if len(self._time_s) < 2:
            return shares
        jobs = np.interp(to_s, self._time_s, self._job_s) - np.interp(from_s, self._time_s, self._job_s)
        gpus = np.interp(to_s, self._time_s, self._gpu_s) - np.interp(from_s, self._time_s, self._gpu_s)
        known = (to_s > from_s) & (gpus > 0)
        shares[known] = gpus[known] / np.maximum(jobs, to_s - from_s)[known]
        return shares


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """From this time on, this was the decision."""

    time_s: float
    decision: Decision
    command: str  # what was done to the job at that moment; empty when nothing was


@dataclass(slots=True)
class DecisionHistory:
    """Records every change of the decision on one job while a simulation runs."""

    job: JobId
    changes: list[DecisionChange] = field(default_factory=list)

    def watch(self, world: World, plan: Plan) -> None:
        decision = plan.decisions.of(self.job)
        if decision is None:
            return
        if decision.reason is Reason.IN_TRANSITION:
            return  # The command that began it is recorded already.
        done = next((c for c in plan.commands if c.job == self.job), None)
        done_text = f"{type(done).__name__.lower()}: {done.reason.sentence(done.evidence)}" if done else ""
        last = self.changes[-1].decision if self.changes else None
        if done is None and last is not None and (last.reason, last.gpus) == (decision.reason, decision.gpus):
            return
        self.changes.append(DecisionChange(plan.time_s, decision, done_text))
