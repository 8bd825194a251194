"""The state of everything. It changes by `apply` alone (apply.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import bits, with_own_containers
from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId, JobState, Progress
from batuta.core.job_table import JobTable, Phase
from batuta.core.layout import Layout
from batuta.core.node_table import NO_TYPE, NodeRequirements, NodeTable, most_gpus, most_on_node, wishes_of
from batuta.core.quota import Flavors, Quota, effective_quota
from batuta.core.reason import Evidence, Reason
from batuta.core.trial import TrialMeasurement
from batuta.core.utilisation import Idle, Usage


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
    trials: tuple[TrialMeasurement, ...] = ()  # what its trial runs showed, if it had some
    placement: Placement | None = None  # where a trial run was at its end
    run_s: float | None = None  # how long it ran; None for a job that ended before that was counted
    reason: Reason | None = field(default=None, metadata={"rare": True})
    """Why it was ended, where it did not end by itself."""
    evidence: Evidence | None = field(default=None, metadata={"rare": True})


class ForeignUsage(NamedTuple):
    """What others use of a node."""

    gpus: int = 0  # a set, as it was told: the node may have fewer GPUs by now
    cpus_milli: int = 0
    memory_mib: int = 0


class ExcludedNodes(NamedTuple):
    """Nodes that would not have a job, as a set, and until when they are not asked again."""

    nodes: int
    until_s: float


@dataclass(slots=True, eq=False, repr=False)
class WorldCaches:
    """What follows from the state of a World, and is kept because it is read more often than it changes."""

    effective_quota: Quota = field(default_factory=Quota)
    effective_from: Quota | None = None  # the declared quota that it follows from; None once nodes have changed
    reach: dict[NodeRequirements, list[int]] = field(default_factory=dict)
    """By what living jobs want of nodes, and by type: the most GPUs that such a job could have.

    For CPU-only jobs one number, the most replicas."""
    most: dict[JobId, list[int]] = field(default_factory=dict)
    """The same by job, as far as it was read: to compare wishes takes longer than to look here."""
    open_capacity: list[int] = field(default_factory=list)  # GPUs of open nodes by type


@dataclass(slots=True, eq=False, repr=False)
class World:
    """Jobs, nodes, queues, placements. One owner changes it, by `apply`; `fork` gives an independent copy."""

    version: int = 0
    now_s: float = 0.0
    jobs: JobTable = field(default_factory=JobTable)
    nodes: NodeTable = field(default_factory=NodeTable)
    layout: Layout = field(init=False)
    quota: Quota = field(default_factory=Quota)  # what administrators declared; `effective_quota` is what holds
    flavors: dict[JobId, Flavors] = field(default_factory=dict)  # what quota each job with GPUs uses
    past: dict[JobId, PastJob] = field(default_factory=dict)
    progress: dict[JobId, Progress] = field(default_factory=dict)  # what living jobs said last
    policy: str = ""  # the one that was chosen last; empty for the one that the engine was started with
    cordoned: int = 0  # nodes that a person took out of service
    demand_generation: int = 0  # how often demand or capacity has changed; see eligibility.py
    lost: int = 0
    ill: dict[int, int] = field(default_factory=dict)
    """By node: GPUs that are ill themselves, whether the node is there or not."""
    others: dict[int, ForeignUsage] = field(default_factory=dict)
    """By node: what is used by others, who are no jobs of ours."""
    avoided: dict[JobId, ExcludedNodes] = field(default_factory=dict)  # by job: nodes that would not have it
    leaving: dict[JobId, Placement] = field(default_factory=dict)
    """By job: GPUs that were taken from it and that it may still be on, as it saves its work first."""
    usage: dict[int, Usage] = field(default_factory=dict)  # by node: how busy its GPUs were, as it was last told
    loads: dict[str, float] = field(default_factory=dict)  # by name: how busy jobs of that name keep a GPU
    idle: dict[JobId, Idle] = field(default_factory=dict)  # jobs that leave their GPUs idle, or did
    trials: dict[JobId, tuple[TrialMeasurement, ...]] = field(default_factory=dict)
    """By living job that is tried out, or was: what that showed."""
    forgotten: int = 0  # how many jobs that were over are not in `past` any more, since the owner of this World began
    caches: WorldCaches = field(default_factory=WorldCaches)

    def __post_init__(self) -> None:
        self.layout = Layout(self.nodes)

    def fork(self) -> World:
        twin = with_own_containers(self)
        twin.jobs, twin.nodes = self.jobs.fork(), with_own_containers(self.nodes)
        twin.layout, twin.caches = self.layout.fork(twin.nodes), with_own_containers(self.caches)
        return twin

    @property
    def effective_quota(self) -> Quota:
        """The quota that holds on the nodes that are there: the very same until it becomes another one."""
        if self.caches.effective_from is not self.quota:
            found = effective_quota(self.quota, self.nodes, self.lost)
            if found != self.caches.effective_quota:
                self.caches.effective_quota = found
            self.caches.effective_from = self.quota
        return self.caches.effective_quota

    def sound(self, i: int) -> int:
        """The GPUs of a node that are there and not ill, in use or not."""
        if self.lost >> i & 1:
            return 0
        return (1 << self.nodes.nodes[i].gpus) - 1 & ~self.ill.get(i, 0)

    def missing(self) -> dict[int, int]:
        """By node: the GPUs that no job can have, because they are ill or others use them."""
        found = dict(self.ill)
        for i, others in self.others.items():
            if others.gpus:
                found[i] = found.get(i, 0) | others.gpus
        nodes = self.nodes.nodes
        return {i: mask for i, own in found.items() if (mask := own & (1 << nodes[i].gpus) - 1)}

    def capacity(self) -> list[int]:
        """GPUs by type that jobs have or could have: what they hold, and what is free on open nodes.

        What a job holds counts even if others are said to use it too: until the backend tells who has it,
        no other job has to make room for that.
        """
        layout, nodes, jobs = self.layout, self.nodes, self.jobs
        total = [layout.free_gpus(layout.usable & own) for own in nodes.by_type]
        if len(total) == 1:
            total[0] += int(jobs.gpus().sum())
        elif jobs.n:
            held = np.bincount(jobs.gpu_type + 1, jobs.held, len(total) + 1)
            total = [free + int(own) for free, own in zip(total, held[1:].tolist(), strict=True)]
        for (i, _), card in layout.cards.items():
            total[nodes.type_of[i]] -= card.shares - 1
        return total

    def recount(self) -> None:
        """Counts the GPUs of open nodes by type; called when nodes or GPUs come and go, not every cycle."""
        self.caches.effective_from = None
        self.caches.open_capacity = [0] * len(self.nodes.types)
        for i in bits(self.layout.usable):
            if self.nodes.type_of[i] != NO_TYPE:
                self.caches.open_capacity[self.nodes.type_of[i]] += self.layout.healthy[i].bit_count()

    def count_node(self, i: int) -> None:
        """Adds a new node to the count, so that adding n nodes does not take n² steps."""
        self.caches.effective_from = None
        kind = self.nodes.type_of[i]
        if kind == NO_TYPE:
            return
        while len(self.caches.open_capacity) <= kind:
            self.caches.open_capacity.append(0)
        self.caches.open_capacity[kind] += self.nodes.nodes[i].gpus

    def look_around(self) -> None:
        """Finds out for every job how much the open nodes could give to it; called when they have changed."""
        self.caches.reach.clear()
        for row in range(self.jobs.n):
            self.judge(row)

    def look_beside(self, i: int, before: ForeignUsage) -> None:
        """Does that where it makes a difference, when others use more or less of a node's CPU or memory."""
        node, healthy, now = self.nodes.nodes[i], self.layout.healthy[i], self.others.get(i, ForeignUsage())
        changed = False
        for wishes in self.caches.reach:
            if wishes.mind_what_is_beside and most_on_node(node, healthy, before, wishes) != most_on_node(
                node, healthy, now, wishes
            ):
                self.caches.reach[wishes] = most_gpus(self, wishes)
                changed = True
        if changed:
            for row in range(self.jobs.n):
                self.judge(row)

    def judge(self, row: int) -> None:
        """Notes whether a job wants more than the open nodes could give to it if it were alone."""
        job = self.jobs.jobs[row]
        wishes = wishes_of(job)
        most = self.caches.reach.get(wishes)
        if most is None:
            most = self.caches.reach[wishes] = most_gpus(self, wishes)
        self.caches.most[job.id] = most
        if job.cpu_only:
            # What a policy divides is no matter to it: its fit is looked at when it is placed.
            return
        narrow = not most
        for gpus, total in zip(most, self.caches.open_capacity, strict=True):
            # Where all GPUs are open to the job its `max` is no matter: the policy sees the capacity itself.
            narrow |= gpus < (job.size if gpus == total else job.max)
        self.jobs.set_narrow(row, narrow)

    def most_for(self, row: int) -> list[int]:
        """By GPU type: the most that the open nodes could give to a job if it were alone."""
        jobs = self.jobs
        found = self.caches.most.get(jobs.ids[row])
        if found is None:
            found = self.caches.most[jobs.ids[row]] = self.caches.reach[wishes_of(jobs.jobs[row])]
        return found

    def state_of(self, row: int) -> JobState:
        """What people see of a living job."""
        jobs = self.jobs
        phase = jobs.phase_of(row)
        if phase is Phase.WAITING or phase is Phase.STOPPING:
            never_ran = math.isnan(jobs.first_start_s[row])
            return JobState.PENDING if never_ran else JobState.PREEMPTED
        if phase is Phase.STARTING:
            return JobState.SETTING_UP
        return JobState.RUNNING if phase is Phase.RUNNING else JobState.RESIZING


def speed_at(world: World, job: Job, placement: Placement) -> float:
    """Predicted speed on these GPUs, relative to one GPU of the reference type; 1 for a CPU-only job."""
    if job.cpu_only:
        return 1.0
    spans = placement.spans
    curve = job.curve
    speed = curve.at(placement.size)
    if len(spans) > 1 and curve.minds_spread:
        speed *= curve.spread(len(placement.nodes), world.nodes.racks(placement))
    if job.gpu_types:
        speed *= dict(job.gpu_types).get(world.nodes.nodes[world.nodes.index[spans[0].node]].gpu_type, 1.0)
    return speed
