"""The state of everything, and `apply`, the only way in which it changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement, Queue, Span
from batuta.core.command import Migrate, Preempt, Resize, Start, Stop
from batuta.core.job import Job, JobId, JobState
from batuta.core.job_table import JobTable, Phase
from batuta.core.layout import Layout, NodeTable, bits
from batuta.core.progress import Progress
from batuta.core.reach import Wishes, most_gpus, wishes_of
from batuta.core.wish import Wish

# Places of the cells that every start and stop writes.
_FIRST_START, _LAST_START, _LAST_STOP, _LAST_RESIZE, _RATE = (
    JobTable.F[name] for name in ("first_start_s", "last_start_s", "last_stop_s", "last_resize_s", "rate")
)
_ATTAINED, _SERVICE = JobTable.F["attained_gpu_s"], JobTable.F["service_gpu_s"]
_GPU_TYPE, _RESTARTS, _LOST = (JobTable.I[name] for name in ("gpu_type", "restarts", "lost_gpus"))


class StalePlanError(Exception):
    """The plan was made from an older World; it is dropped, not repaired."""


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


def apply(world: World, event: ev.Event) -> None:
    """Brings the World up to date with one event. Deterministic, without input or output."""
    _HANDLERS[type(event)](world, event)
    world.version += 1
    world.now_s = max(world.now_s, event.time_s)


def _submit(world: World, event: ev.JobSubmitted) -> None:
    job = event.job
    if job.id in world.jobs or job.id in world.past:
        raise ValueError(f"job {job.id} exists already")
    world.judge(world.jobs.insert(job))


def _change(world: World, event: ev.JobChanged) -> None:
    jobs, wanted = world.jobs, event.job
    if wanted.id not in jobs:
        return
    row = jobs.row(wanted.id)
    known = jobs.jobs[row]
    # Only this: what a job holds was booked by its share, its replicas, the CPU and memory beside its GPUs.
    changed = replace(
        known,
        size=wanted.size,
        min=wanted.min,
        max=wanted.max,
        sizes=wanted.sizes,
        priority=wanted.priority,
        queue=wanted.queue,
        # What was learned since stays, unless it ends below the new range.
        curve=max(known.curve, wanted.curve, key=lambda curve: len(curve.speeds)),
    )
    jobs.describe(row, changed)
    world.judge(row)


def _started(world: World, event: ev.JobStarted) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    placement = jobs.placements[row]
    if placement is None or jobs.phase_of(row) is Phase.BROKEN:
        return
    jobs.settle(row, event.time_s)
    jobs.set_phase(row, Phase.RUNNING)
    jobs.cells()[0][_RATE, row] = speed_at(world, jobs.jobs[row], placement)


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


def _progressed(world: World, event: ev.JobProgressed) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    jobs.settle(row, event.time_s)
    jobs.f("remaining_s")[row] = event.remaining_s
    if event.progress is not None:
        world.progress[event.job] = event.progress
    if event.restart_s is not None:
        jobs.f("restart_s")[row] = event.restart_s
    if event.curve is not None:
        jobs.set_curve(row, event.curve)
        placement = jobs.placements[row]
        if placement is not None and jobs.phase_of(row) is Phase.RUNNING:
            jobs.f("rate")[row] = speed_at(world, jobs.jobs[row], placement)


def _interrupted(world: World, event: ev.JobInterrupted) -> None:
    if event.job in world.jobs:
        row = world.jobs.row(event.job)
        if world.jobs.placements[row] is not None:
            _release(world, row, event.time_s)
        if event.not_before_s > event.time_s:
            world.jobs.hold_back(row, not_before_s=event.not_before_s)


def _wished(world: World, event: ev.JobWished) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    if jobs.wish_of(row) is Wish.CANCEL:
        return
    if event.wish is not Wish.EVICT:
        # Whoever says RUN does not want to wait for a back-off to end.
        jobs.hold_back(row, event.wish, 0.0 if event.wish is Wish.RUN else None)
    elif jobs.placements[row] is not None and jobs.wish_of(row) is Wish.RUN:
        jobs.hold_back(row, Wish.EVICT)


def _policy_set(world: World, event: ev.PolicySet) -> None:
    world.policy = event.policy


def _ended(world: World, event: ev.JobEnded) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    if jobs.placements[row] is not None:
        _release(world, row, event.time_s)
    f, i = jobs.cells()
    first_start_s, attained_gpu_s = f.item(_FIRST_START, row), f.item(_ATTAINED, row)
    world.past[event.job] = PastJob(
        jobs.jobs[row],
        event.state,
        first_start_s,
        event.time_s,
        attained_gpu_s,
        i.item(_RESTARTS, row),
        world.progress.pop(event.job, None),
        event.exit_code,
        event.detail,
    )
    jobs.remove(event.job)


def _release(world: World, row: int, now_s: float) -> None:
    """Takes all GPUs from a job; it waits again."""
    jobs = world.jobs
    placement = jobs.placements[row]
    if placement is None:
        return
    jobs.settle(row, now_s)
    world.layout.remove(placement, jobs.jobs[row])
    jobs.placements[row] = None
    f, i = jobs.cells()
    f[_RATE, row], f[_LAST_STOP, row] = 0.0, now_s
    i[_GPU_TYPE, row], i[_LOST, row] = -1, 0
    jobs.set_gpus(row, 0)
    jobs.set_phase(row, Phase.WAITING)
    if jobs.held_back and jobs.wish_of(row) is Wish.EVICT:
        jobs.hold_back(row, Wish.RUN)


def _planned(world: World, event: ev.Planned) -> None:
    plan = event.plan
    if plan.world_version != world.version:
        raise StalePlanError(f"plan is for version {plan.world_version}, the World has {world.version}")
    jobs, now_s = world.jobs, event.time_s
    for job, tier in plan.retiered:
        row = jobs.row(job)
        jobs.i("tier")[row] = tier
        jobs.f("tier_since_s")[row] = now_s
    # All GPUs are given back before any is taken: two jobs may swap places in one plan.
    taking: list[tuple[int, Start | Resize | Migrate, set[Span]]] = []
    for command in plan.commands:
        row = jobs.row(command.job)
        if isinstance(command, Preempt | Stop):
            _release(world, row, now_s)
            if isinstance(command, Stop):
                jobs.set_phase(row, Phase.STOPPING)
            continue
        kept, held = set[Span](), jobs.placements[row]
        if held is not None:
            kept.update(held.spans)
            kept.intersection_update(command.placement.spans)
            world.layout.remove(held, jobs.jobs[row], kept)
        taking.append((row, command, kept))
    for row, command, kept in taking:
        world.layout.place(command.placement, jobs.jobs[row], kept)
        phase = Phase.STARTING if isinstance(command, Start) else Phase.RESIZING
        _occupy(world, row, command.placement, now_s, phase)


def _occupy(world: World, row: int, placement: Placement, now_s: float, phase: Phase) -> None:
    """Notes that a job has these GPUs from now on."""
    jobs = world.jobs
    jobs.settle(row, now_s)
    f, i = jobs.cells()
    if math.isnan(f.item(_FIRST_START, row)):
        f[_FIRST_START, row] = now_s
    else:
        i[_RESTARTS, row] += 1
    if phase is Phase.STARTING:
        f[_LAST_START, row], f[_SERVICE, row] = now_s, 0.0
    else:
        f[_LAST_RESIZE, row] = now_s
    jobs.placements[row] = placement
    f[_RATE, row] = 0.0
    i[_LOST, row], i[_GPU_TYPE, row] = 0, world.nodes.type_of[world.nodes.index[placement.spans[0].node]]
    jobs.set_gpus(row, placement.size)
    if jobs.held_back:
        jobs.hold_back(row, not_before_s=0.0)
    jobs.set_phase(row, phase)


def _node_added(world: World, event: ev.NodeAdded) -> None:
    if event.node.name in world.nodes.index:
        raise ValueError(f"node {event.node.name} exists already")
    i = world.nodes.add(event.node)
    world.layout.add(event.node)
    world.count_node(i)
    world.look_around()


def _node_lost(world: World, event: ev.NodeLost) -> None:
    i = world.nodes.index[event.node]
    world.lost |= 1 << i
    _refresh_node(world, i, event.time_s)


def _node_returned(world: World, event: ev.NodeReturned) -> None:
    i = world.nodes.index[event.node]
    world.lost &= ~(1 << i)
    _refresh_node(world, i, event.time_s)


def _node_cordoned(world: World, event: ev.NodeCordoned) -> None:
    i = world.nodes.index[event.node]
    world.cordoned |= 1 << i
    _refresh_node(world, i, event.time_s)


def _node_uncordoned(world: World, event: ev.NodeUncordoned) -> None:
    i = world.nodes.index[event.node]
    world.cordoned &= ~(1 << i)
    _refresh_node(world, i, event.time_s)


def _gpu_failed(world: World, event: ev.GpuFailed) -> None:
    i = world.nodes.index[event.node]
    world.ill[i] = world.ill.get(i, 0) | 1 << event.gpu
    _refresh_node(world, i, event.time_s)


def _gpu_repaired(world: World, event: ev.GpuRepaired) -> None:
    i = world.nodes.index[event.node]
    world.ill[i] = world.ill.get(i, 0) & ~(1 << event.gpu)
    _refresh_node(world, i, event.time_s)


def _refresh_node(world: World, i: int, now_s: float) -> None:
    """Derives what a node can give from the facts about it: there or lost, cordoned, GPUs that are ill."""
    layout, bit = world.layout, 1 << i
    lost = bool(world.lost & bit)
    healthy = 0 if lost else ((1 << world.nodes.nodes[i].gpus) - 1) & ~world.ill.get(i, 0)
    gone = layout.healthy[i] & ~healthy
    back = healthy & ~layout.healthy[i]
    layout.healthy[i] = healthy
    layout.set_free(i, layout.free[i] & ~gone | back)
    layout.usable = layout.usable & ~bit if lost or world.cordoned & bit else layout.usable | bit
    if gone:
        _drop_gpus(world, i, gone, now_s)
    world.recount()
    world.look_around()


def _drop_gpus(world: World, i: int, gone: int, now_s: float) -> None:
    """Jobs on these GPUs lose them and keep the others until the next cycle repairs or stops them."""
    layout, jobs = world.layout, world.jobs
    name = world.nodes.nodes[i].name
    for row, placement in enumerate(jobs.placements):
        if placement is None or not any(s.node == name and _hit(s, gone) for s in placement.spans):
            continue
        left = _without(placement, name, gone)
        if left.size == 0:
            _release(world, row, now_s)
            continue
        jobs.settle(row, now_s)
        layout.remove(placement, jobs.jobs[row])
        layout.place(left, jobs.jobs[row])
        jobs.placements[row] = left
        jobs.f("rate")[row] = 0.0
        jobs.set_gpus(row, left.size)
        jobs.set_phase(row, Phase.BROKEN)
        jobs.i("lost_gpus")[row] += placement.size - left.size


def _hit(span: Span, mask: int) -> bool:
    return any(mask >> gpu & 1 for gpu in span.gpus)


def _without(placement: Placement, node: NodeName, mask: int) -> Placement:
    spans = (
        Span(s.node, tuple(g for g in s.gpus if not (s.node == node and mask >> g & 1)))
        for s in placement.spans
    )
    return Placement(tuple(span for span in spans if span.gpus))


def _queue_set(world: World, event: ev.QueueSet) -> None:
    world.queues[event.queue.name] = event.queue


def _time_passed(world: World, event: ev.TimePassed | ev.TransitionTimed) -> None:
    """Only the clock moves, which `apply` does for every event."""


_HANDLERS: dict[type, Callable[..., None]] = {
    ev.JobSubmitted: _submit,
    ev.JobStarted: _started,
    ev.JobProgressed: _progressed,
    ev.JobInterrupted: _interrupted,
    ev.JobEnded: _ended,
    ev.JobChanged: _change,
    ev.JobWished: _wished,
    ev.TransitionTimed: _time_passed,
    ev.PolicySet: _policy_set,
    ev.NodeAdded: _node_added,
    ev.NodeLost: _node_lost,
    ev.NodeReturned: _node_returned,
    ev.NodeCordoned: _node_cordoned,
    ev.NodeUncordoned: _node_uncordoned,
    ev.GpuFailed: _gpu_failed,
    ev.GpuRepaired: _gpu_repaired,
    ev.QueueSet: _queue_set,
    ev.TimePassed: _time_passed,
    ev.Planned: _planned,
}
