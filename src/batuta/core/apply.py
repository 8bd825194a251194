"""`apply`: the only way in which the World changes, and what each kind of event changes in it.

A plan is an event too: its commands are on their way, and its GPUs count as taken from now on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batuta.core import event as ev
from batuta.core.arrays import mask_of
from batuta.core.cluster import Node, NodeName, Span
from batuta.core.eligibility import CHANGES_DEMAND, note_change
from batuta.core.holdings import begin_to_leave, has_left, lose_gpus, lose_node, occupy, release, take_over, type_of
from batuta.core.job import DesiredState, Job, JobId
from batuta.core.job_table import Phase
from batuta.core.plan import Migrate, Preempt, Resize, Start, Stop
from batuta.core.reason import Reason
from batuta.core.trial import TrialOutcome, run_id
from batuta.core.utilisation import Idle, Usage, began_anew, learn_name, note_use, was_enlarged, was_told
from batuta.core.world import ExcludedNodes, ForeignUsage, PastJob, World, speed_at

AVOID_S = 60.0  # for so long after its back-off a job is not sent to a node again that would not have it


def apply(world: World, event: ev.Event) -> None:
    """Brings the World up to date with one event. Deterministic, without input or output."""
    world.jobs.crowd_s += world.jobs.n * max(event.time_s - world.now_s, 0.0)
    _HANDLERS[type(event)](world, event)
    if type(event) in CHANGES_DEMAND:
        world.demand_generation += 1
    world.version += 1
    world.now_s = max(world.now_s, event.time_s)
    if world.avoided:  # nodes that would not have a job are asked again, once that is long ago
        world.avoided = {job: one for job, one in world.avoided.items() if one.until_s > world.now_s}


def check(world: World, event: ev.Event) -> None:
    """ValueError for an event that cannot be applied. To be asked before it is written down."""
    if isinstance(event, ev.JobSubmitted):
        _check_new(world, event.job)


def _quota_set(world: World, event: ev.QuotaSet) -> None:
    """A queue that is gone but has jobs that run stays until they are done; it starts nothing new."""
    quota = event.quota
    busy = {
        door.cluster_queue
        for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True)
        if placement is not None and (door := world.quota.way(job.namespace, job.queue)) is not None
    }
    gone = [queue for queue in world.quota.cluster_queues if queue.name in busy and queue.name not in quota.queue_of]
    if gone:
        doors = [
            door
            for door in world.quota.local_queues
            if door.cluster_queue in {queue.name for queue in gone} and quota.door(door.namespace, door.name) is None
        ]
        quota = replace(
            quota,
            cluster_queues=(*quota.cluster_queues, *gone),
            local_queues=(*quota.local_queues, *doors),
            leaving=tuple(queue.name for queue in gone),
        )
    world.quota = quota


def _policy_set(world: World, event: ev.PolicySet) -> None:
    world.policy = event.policy


def _time_passed(world: World, event: ev.TimePassed | ev.HealthChanged | ev.ActionTaken) -> None:
    """Only the clock moves, which `apply` does for every event."""


class StalePlanError(Exception):
    """The plan was made from an older World; it is dropped, not repaired."""


def apply_plan(world: World, event: ev.Planned) -> None:
    plan = event.plan
    if plan.world_version != world.version:
        raise StalePlanError(f"plan is for version {plan.world_version}, the World has {world.version}")
    jobs, now_s = world.jobs, event.time_s
    for job, tier in plan.retiered:
        row = jobs.row(job)
        jobs.tier[row] = tier
        jobs.tier_since_s[row] = now_s
    # All GPUs are given back before any is taken: two jobs may swap places in one plan.
    taking: list[tuple[int, Start | Resize | Migrate, set[Span]]] = []
    for command in plan.commands:
        row = jobs.row(command.job)
        begin_to_leave(world, row, None if isinstance(command, Preempt | Stop) else command.placement)
        if isinstance(command, Preempt | Stop):
            release(world, row, now_s)
            if isinstance(command, Stop):
                jobs.set_phase(row, Phase.STOPPING)
            elif command.reason is Reason.PARKED_IDLE:
                jobs.hold_back(row, DesiredState.PARK)
                world.idle[command.job] = Idle(parked=command.evidence)
            continue
        if command.reason is Reason.SHRUNK_IDLE:
            world.idle[command.job] = Idle(kept_small=True)
        elif world.idle and command.placement.size > max(jobs.jobs[row].min, int(jobs.held[row])):
            was_enlarged(world, command.job)
        kept, held = set[Span](), jobs.placements[row]
        if held is not None:
            if not jobs.jobs[row].cpu_only:  # its replicas on one node are equal spans, so none can be told apart
                kept.update(held.spans)
                kept.intersection_update(command.placement.spans)
            world.layout.remove(held, jobs.jobs[row], kept)
        taking.append((row, command, kept))
    world.flavors.update(plan.flavors)
    for job in plan.found_idle:
        was_told(world, job)
    for row, command, kept in taking:
        world.layout.place(command.placement, jobs.jobs[row], kept)
        phase = Phase.STARTING if isinstance(command, Start) else Phase.RESIZING
        occupy(world, row, command.placement, now_s, phase)
        note_change(world, row, now_s)


def _begin_trials(world: World, row: int) -> None:
    """Lets a new job wait for its trial runs, if it shall have some."""
    job = world.jobs.jobs[row]
    if job.trial is not None:
        world.trials[job.id] = ()
        world.jobs.hold_back(row, DesiredState.TRY)


def _trial_measured(world: World, event: ev.TrialMeasured) -> None:
    """Keeps what a trial run showed, beside what is known of other sizes."""
    measured = event.measured
    if measured.outcome is TrialOutcome.MEASURED and measured.utilisation is not None:
        learn_name(world, measured.application, measured.utilisation)
    if event.job in world.trials:
        others = (one for one in world.trials[event.job] if one.gpus != measured.gpus)
        world.trials[event.job] = (*others, measured)


def _give_up_trials(world: World, job: Job) -> None:
    """Ends the trial runs of a job that does not wait for them any more."""
    jobs = world.jobs
    for gpus in job.trial.sizes if job.trial is not None else ():
        run = run_id(job.id, gpus)
        if run in jobs:
            jobs.hold_back(jobs.row(run), DesiredState.CANCEL)


def _check_new(world: World, job: Job) -> None:
    if job.id in world.jobs or job.id in world.past:
        raise ValueError(f"job {job.id} exists already")


def _submit(world: World, event: ev.JobSubmitted) -> None:
    _check_new(world, event.job)
    row = world.jobs.insert(event.job)
    world.judge(row)
    _begin_trials(world, row)


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
        size_choice=wanted.size_choice or known.size_choice,
        restartable=wanted.restartable,
    )
    if jobs.placements[row] is None:
        # A job without GPUs may also want others.
        changed = replace(
            changed,
            gpu_types=wanted.gpu_types,
            topology=wanted.topology,
            node_labels=wanted.node_labels,
            node_terms=wanted.node_terms,
            tolerations=wanted.tolerations,
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
    if world.leaving:
        has_left(world, row)
    began_anew(world, row, event.time_s)
    jobs.rate[row] = speed_at(world, jobs.jobs[row], placement)


def _progressed(world: World, event: ev.JobProgressed) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    jobs.settle(row, event.time_s)
    jobs.remaining_s[row] = event.remaining_s
    if event.progress is not None:
        world.progress[event.job] = event.progress
    if event.restart_s is not None:
        jobs.restart_s[row] = event.restart_s
    if event.outlook is not None:
        jobs.outlooks[event.job] = event.outlook
    if event.curve is not None:
        jobs.set_curve(row, event.curve)
        placement = jobs.placements[row]
        if placement is not None and jobs.phase_of(row) is Phase.RUNNING:
            jobs.rate[row] = speed_at(world, jobs.jobs[row], placement)


def _checkpointed(world: World, event: ev.JobCheckpointed) -> None:
    if event.job in world.jobs:
        world.jobs.note_checkpoint(world.jobs.row(event.job), event.saved_s)


def _found(world: World, event: ev.JobFound) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    take_over(world, row, event.placement, event.time_s, event.running)
    world.leaving.pop(event.job, None)
    began_anew(world, row, event.time_s)
    _avoid(world, event)
    if event.not_before_s > event.time_s:
        jobs.hold_back(row, not_before_s=event.not_before_s)


def _avoid(world: World, event: ev.JobFound | ev.JobInterrupted) -> None:
    """Notes which nodes would not have a job. They are asked again after a while, or when they change."""
    _exclude(world, event.job, event.avoid, max(event.not_before_s, event.time_s) + AVOID_S)


def _exclude(world: World, job: JobId, names: tuple[NodeName, ...], until_s: float) -> None:
    nodes = sum(1 << world.nodes.index[name] for name in set(names) if name in world.nodes.index)
    if nodes:
        before = world.avoided.get(job)
        world.avoided[job] = ExcludedNodes(nodes | (before.nodes if before else 0), until_s)


def _interrupted(world: World, event: ev.JobInterrupted) -> None:
    world.leaving.pop(event.job, None)
    if event.job in world.jobs:
        row = world.jobs.row(event.job)
        if world.jobs.placements[row] is not None:
            release(world, row, event.time_s)
        if event.not_before_s > event.time_s:
            world.jobs.hold_back(row, not_before_s=event.not_before_s)
        _avoid(world, event)


def _wished(world: World, event: ev.JobWished) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    if jobs.wish_of(row) is DesiredState.CANCEL or jobs.wish_of(row) is event.wish is DesiredState.PARK:
        return  # of one that is parked it stays known why
    if event.wish is not DesiredState.EVICT:
        world.idle.pop(event.job, None)  # a user has looked after it
        if jobs.wish_of(row) is DesiredState.TRY:
            _give_up_trials(world, jobs.jobs[row])
        # A user who says RUN does not want to wait for a back-off to end.
        jobs.hold_back(row, event.wish, 0.0 if event.wish is DesiredState.RUN else None)
    elif jobs.placements[row] is not None and jobs.wish_of(row) is DesiredState.RUN:
        jobs.hold_back(row, DesiredState.EVICT)


def _ended(world: World, event: ev.JobEnded) -> None:
    jobs = world.jobs
    if event.job not in jobs:
        return
    row = jobs.row(event.job)
    end_s = event.time_s if event.ended_s is None else min(event.time_s, event.ended_s)
    job, placement = jobs.jobs[row], jobs.placements[row]
    _give_up_trials(world, job)
    if placement is not None:
        release(world, row, end_s)
    world.past[event.job] = PastJob(
        job,
        event.state,
        jobs.first_start_s.item(row),
        end_s,
        jobs.attained_gpu_s.item(row),
        jobs.restarts.item(row),
        world.progress.pop(event.job, None),
        event.exit_code,
        event.detail,
        world.trials.pop(event.job, ()),
        placement if job.trial_of is not None else None,
        jobs.run_s.item(row),
        event.reason,
        event.evidence,
    )
    world.avoided.pop(event.job, None)
    world.leaving.pop(event.job, None)
    world.idle.pop(event.job, None)
    world.caches.most.pop(event.job, None)
    jobs.remove(event.job)


def _timed(world: World, event: ev.TransitionTimed) -> None:
    """A job has left its GPUs, or runs on others."""
    world.leaving.pop(event.job, None)


def _forgotten(world: World, event: ev.JobForgotten) -> None:
    if world.past.pop(event.job, None) is not None:
        world.forgotten += 1


def _held_up(world: World, event: ev.JobHeldUp) -> None:
    """Adds the nodes to those that the job avoids. One that is changed or replaced is asked again sooner."""
    if event.job in world.jobs:
        before = world.avoided.get(event.job)
        until_s = event.until_s if before is None else max(before.until_s, event.until_s)
        _exclude(world, event.job, event.avoid, until_s)


def _node_added(world: World, event: ev.NodeAdded) -> None:
    if event.node.name in world.nodes.index:
        raise ValueError(f"node {event.node.name} exists already")
    i = world.nodes.add(event.node)
    world.layout.add(event.node)
    world.count_node(i)
    world.look_around()


def _node_changed(world: World, event: ev.NodeChanged) -> None:
    node = event.node
    if node.name not in world.nodes.index:
        return
    i = world.nodes.index[node.name]
    before = world.nodes.nodes[i]
    world.nodes.change(i, node)
    world.layout.change(i, before, node)
    # If it would not have a job, it may have another reason now, or none.
    left = {job: one._replace(nodes=one.nodes & ~(1 << i)) for job, one in world.avoided.items()}
    world.avoided = {job: one for job, one in left.items() if one.nodes}
    _refresh_node(world, i, event.time_s)
    if (before.gpu_type, before.rack) != (node.gpu_type, node.rack):
        _look_at_tenants(world, node, event.time_s)


def _look_at_tenants(world: World, node: Node, now_s: float) -> None:
    """Jobs on a node of another type, or in another rack than was thought, run at another speed."""
    jobs = world.jobs
    for row, placement in enumerate(jobs.placements):
        if placement is not None and node.name in placement.nodes:
            jobs.gpu_type[row] = type_of(world, jobs.jobs[row], placement)
            if jobs.phase_of(row) is Phase.RUNNING:
                jobs.settle(row, now_s)
                jobs.rate[row] = speed_at(world, jobs.jobs[row], placement)


def _others_use(world: World, event: ev.OthersUse) -> None:
    if event.node not in world.nodes.index:
        return
    i = world.nodes.index[event.node]
    layout, before = world.layout, world.others.get(i, ForeignUsage())
    now = world.others[i] = ForeignUsage(mask_of(event.gpus), event.cpus_milli, event.memory_mib)
    layout.cpus_milli[i] -= now.cpus_milli - before.cpus_milli
    layout.memory_mib[i] -= now.memory_mib - before.memory_mib
    if now.gpus == before.gpus:
        world.look_beside(i, before)
        return
    # A job of ours on such a GPU keeps it: who was there first is unknown, and the backend will tell.
    _refresh_node(world, i, event.time_s)


def _held(world: World, i: int) -> int:
    """The GPUs of a node that jobs have."""
    name, held = world.nodes.nodes[i].name, 0
    for placement in world.jobs.placements:
        for node, gpus in placement.spans if placement is not None else ():
            if node == name:
                held |= mask_of(gpus)
    return held


def _healthy(world: World, i: int) -> int:
    """The GPUs of a node that jobs may have."""
    return world.sound(i) & ~world.others.get(i, ForeignUsage()).gpus


def _node_marked(world: World, event: ev.NodeLost | ev.NodeReturned | ev.NodeCordoned | ev.NodeUncordoned) -> None:
    i = world.nodes.index[event.node]
    match event:
        case ev.NodeLost():
            world.lost |= 1 << i
        case ev.NodeReturned():
            world.lost &= ~(1 << i)
        case ev.NodeCordoned():
            world.cordoned |= 1 << i
        case ev.NodeUncordoned():
            world.cordoned &= ~(1 << i)
    _refresh_node(world, i, event.time_s)


def _gpu_marked(world: World, event: ev.GpuFailed | ev.GpuRepaired) -> None:
    i = world.nodes.index[event.node]
    ill, gpu = world.ill.get(i, 0), 1 << event.gpu
    world.ill[i] = ill | gpu if isinstance(event, ev.GpuFailed) else ill & ~gpu
    _refresh_node(world, i, event.time_s)


def _refresh_node(world: World, i: int, now_s: float) -> None:
    """Derives what a node can give from the facts about it: there or lost, cordoned, GPUs that are ill."""
    layout, bit, sound = world.layout, 1 << i, world.sound(i)
    before, healthy = layout.healthy[i], _healthy(world, i)
    back = healthy & ~before
    layout.healthy[i] = healthy
    layout.set_free(i, layout.free[i] & healthy | (back and back & ~_held(world, i)))
    closed = world.lost & bit or world.cordoned & bit
    layout.usable = layout.usable & ~bit if closed else layout.usable | bit
    # A GPU that others are thought to have may be held by a job of ours all the same.
    gone = (before | world.others.get(i, ForeignUsage()).gpus | (1 << world.nodes.nodes[i].gpus) - 1) & ~sound
    if gone:
        lose_gpus(world, {world.nodes.nodes[i].name: gone}, now_s)
    if world.lost & bit and world.jobs.cpu_only:
        for row in range(world.jobs.n):
            lose_node(world, row, world.nodes.nodes[i].name, now_s)
    world.recount()
    world.look_around()


def _gpus_used(world: World, event: ev.GpusUsed) -> None:
    if event.node in world.nodes.index:
        note_use(world, world.nodes.index[event.node], Usage(event.time_s, event.gpus), dict(event.jobs))


_HANDLERS: dict[type, Callable[..., None]] = {
    ev.JobSubmitted: _submit,
    ev.JobChanged: _change,
    ev.JobStarted: _started,
    ev.JobFound: _found,
    ev.JobProgressed: _progressed,
    ev.JobCheckpointed: _checkpointed,
    ev.JobInterrupted: _interrupted,
    ev.JobWished: _wished,
    ev.JobEnded: _ended,
    ev.TransitionTimed: _timed,
    ev.JobForgotten: _forgotten,
    ev.NodeAdded: _node_added,
    ev.NodeChanged: _node_changed,
    ev.OthersUse: _others_use,
    ev.NodeLost: _node_marked,
    ev.NodeReturned: _node_marked,
    ev.NodeCordoned: _node_marked,
    ev.NodeUncordoned: _node_marked,
    ev.GpuFailed: _gpu_marked,
    ev.GpuRepaired: _gpu_marked,
    ev.GpusUsed: _gpus_used,
    ev.Planned: apply_plan,
    ev.QuotaSet: _quota_set,
    ev.PolicySet: _policy_set,
    ev.JobHeldUp: _held_up,
    ev.HealthChanged: _time_passed,
    ev.ActionTaken: _time_passed,
    ev.TrialMeasured: _trial_measured,
    ev.TimePassed: _time_passed,
}
