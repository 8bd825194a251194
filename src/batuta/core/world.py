"""The state of everything. It changes by `apply` alone (apply.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batuta.core.cluster import Placement, Queue
from batuta.core.job import Job, JobId, JobState
from batuta.core.job_table import JobTable, Phase
from batuta.core.layout import Layout, NodeTable, bits
from batuta.core.progress import Progress
from batuta.core.reach import Wishes, most_gpus, wishes_of


@dataclass(frozen=True, slots=True)
class PastJob:
    """What is kept of a job that is over."""

    job: Job
    state: JobState
    first_start_s: float
    end_s: float
    attained_gpu_s: float
    restarts: int
    progress: Progress | None = None
    exit_code: int | None = None
    detail: str = ""


class World:
    """Jobs, nodes, queues, placements. One owner changes it, by `apply`; `fork` gives an independent copy."""

    __slots__ = (
        "_open_capacity",
        "cordoned",
        "ill",
        "jobs",
        "layout",
        "lost",
        "nodes",
        "now_s",
        "past",
        "policy",
        "progress",
        "queues",
        "reach",
        "version",
    )

    def __init__(self) -> None:
        self.version = 0
        self.now_s = 0.0
        self.jobs = JobTable()
        self.nodes = NodeTable()
        self.layout = Layout(self.nodes)
        self.queues: dict[str, Queue] = {}
        self.past: dict[JobId, PastJob] = {}
        self.progress: dict[JobId, Progress] = {}
        """What living jobs said last."""
        self.policy = ""
        """The one that was chosen last; empty for the one that the engine was started with."""
        self.cordoned = 0
        """Nodes that a person took out of service."""
        self.lost = 0
        self.ill: dict[int, int] = {}
        """By node: GPUs that are ill themselves, whether the node is there or not."""
        self.reach: dict[Wishes, list[int]] = {}
        """By what living jobs want of nodes, and by type: the most GPUs that such a job could have."""
        self._open_capacity: list[int] = []

    def fork(self) -> World:
        twin = World()
        twin.version, twin.now_s = self.version, self.now_s
        twin.jobs, twin.nodes = self.jobs.fork(), self.nodes.fork()
        twin.layout = self.layout.fork(twin.nodes)
        twin.queues, twin.past = dict(self.queues), dict(self.past)
        twin.progress, twin.policy = dict(self.progress), self.policy
        twin.cordoned, twin.lost, twin.ill = self.cordoned, self.lost, dict(self.ill)
        twin.reach, twin._open_capacity = dict(self.reach), list(self._open_capacity)
        return twin

    def capacity(self) -> list[int]:
        """GPUs by type that jobs have or could have: all healthy ones, but no free ones on closed nodes."""
        layout, total = self.layout, self._open_capacity.copy()
        if layout.usable != self.nodes.all:
            for i in bits(self.nodes.all & ~layout.usable & ~self.lost):
                total[self.nodes.type_of[i]] += (layout.healthy[i] & ~layout.free[i]).bit_count()
        return total

    def recount(self) -> None:
        """Counts the GPUs of open nodes by type; called when nodes or GPUs come and go, not every cycle."""
        self._open_capacity = [0] * len(self.nodes.types)
        for i in bits(self.layout.usable):
            self._open_capacity[self.nodes.type_of[i]] += self.layout.healthy[i].bit_count()

    def count_node(self, i: int) -> None:
        """Adds a new node to the count, so that adding n nodes does not take n² steps."""
        kind = self.nodes.type_of[i]
        while len(self._open_capacity) <= kind:
            self._open_capacity.append(0)
        self._open_capacity[kind] += self.nodes.nodes[i].gpus

    def look_around(self) -> None:
        """Finds out for every job how much the open nodes could give to it; called when they have changed."""
        self.reach.clear()
        for row in range(self.jobs.n):
            self.judge(row)

    def judge(self, row: int) -> None:
        """Notes whether a job wants more than the open nodes could give to it if it were alone."""
        job = self.jobs.jobs[row]
        wishes = wishes_of(job)
        most = self.reach.get(wishes)
        if most is None:
            most = self.reach[wishes] = most_gpus(self, job)
        narrow = not most
        for gpus, total in zip(most, self._open_capacity, strict=True):
            # Where all GPUs are open to the job its `max` is no matter: the policy sees the capacity itself.
            narrow |= gpus < (job.size if gpus == total else job.max)
        self.jobs.set_narrow(row, narrow)

    def state_of(self, row: int) -> JobState:
        """What people see of a living job."""
        jobs = self.jobs
        phase = jobs.phase_of(row)
        if phase is Phase.WAITING or phase is Phase.STOPPING:
            never_ran = math.isnan(jobs.f("first_start_s")[row])
            return JobState.PENDING if never_ran else JobState.PREEMPTED
        if phase is Phase.STARTING:
            return JobState.SETTING_UP
        return JobState.RUNNING if phase is Phase.RUNNING else JobState.RESIZING


def speed_at(world: World, job: Job, placement: Placement) -> float:
    """Predicted speed on these GPUs, relative to one GPU of the reference type."""
    spans = placement.spans
    curve = job.curve
    speed = curve.at(placement.size)
    if len(spans) > 1 and curve.minds_spread:
        speed *= curve.spread(len(placement.nodes), world.nodes.racks(placement))
    if job.gpu_types:
        speed *= dict(job.gpu_types).get(world.nodes.nodes[world.nodes.index[spans[0].node]].gpu_type, 1.0)
    return speed
