"""`apply`: the only way in which the World changes.

Events about jobs and nodes have files of their own. A plan is an event too: its commands are on their way,
and its GPUs count as taken from now on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batuta.core import event as ev
from batuta.core import job_events, node_events
from batuta.core.cluster import Span
from batuta.core.eligibility import CHANGES_DEMAND, note_change
from batuta.core.holdings import begin_to_leave, occupy, release
from batuta.core.job import DesiredState
from batuta.core.job_events import note_held_up, note_trial
from batuta.core.job_table import Phase
from batuta.core.plan import Migrate, Preempt, Resize, Start, Stop
from batuta.core.reason import Reason
from batuta.core.utilisation import was_enlarged, was_made_small, was_parked, was_told
from batuta.core.world import World


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
                was_parked(world, command.job, command.evidence)
            continue
        if command.reason is Reason.SHRUNK_IDLE:
            was_made_small(world, command.job)
        elif world.idle and command.placement.size > max(jobs.jobs[row].min, int(jobs.held[row])):
            was_enlarged(world, command.job)
        kept, held = set[Span](), jobs.placements[row]
        if held is not None:
            if not jobs.jobs[
                row
            ].cpu_only:  # its replicas on one node are equal spans, so none can be told apart
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


def apply(world: World, event: ev.Event) -> None:
    """Brings the World up to date with one event. Deterministic, without input or output."""
    world.jobs.crowd_s += world.jobs.n * max(event.time_s - world.now_s, 0.0)
    _HANDLERS[type(event)](world, event)
    if type(event) in CHANGES_DEMAND:
        world.demand_generation += 1
    world.version += 1
    world.now_s = max(world.now_s, event.time_s)
    if world.avoided:
        _ask_again(world)


def check(world: World, event: ev.Event) -> None:
    """ValueError for an event that cannot be applied. To be asked before it is written down."""
    if isinstance(event, ev.JobSubmitted):
        job_events.check_new(world, event.job)


def _ask_again(world: World) -> None:
    """Forgets which nodes would not have a job, once that is long ago."""
    for job in [job for job, avoided in world.avoided.items() if avoided.until_s <= world.now_s]:
        del world.avoided[job]


def _quota_set(world: World, event: ev.QuotaSet) -> None:
    """A queue that is gone but has jobs that run stays until they are done; it starts nothing new."""
    quota = event.quota
    busy = {
        door.cluster_queue
        for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True)
        if placement is not None and (door := world.quota.way(job.namespace, job.queue)) is not None
    }
    gone = [
        queue
        for queue in world.quota.cluster_queues
        if queue.name in busy and queue.name not in quota.queue_of
    ]
    if gone:
        doors = [
            door
            for door in world.quota.local_queues
            if door.cluster_queue in {queue.name for queue in gone}
            and quota.door(door.namespace, door.name) is None
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


def _time_passed(world: World, event: ev.TimePassed | ev.HealthChanged) -> None:
    """Only the clock moves, which `apply` does for every event."""


_HANDLERS: dict[type, Callable[..., None]] = {
    **job_events.HANDLERS,
    **node_events.HANDLERS,
    ev.Planned: apply_plan,
    ev.QuotaSet: _quota_set,
    ev.PolicySet: _policy_set,
    ev.JobHeldUp: note_held_up,
    ev.HealthChanged: _time_passed,
    ev.TrialMeasured: note_trial,
    ev.TimePassed: _time_passed,
}
