"""`apply`: the only way in which the World changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batuta.core import event as ev
from batuta.core import held_up, job_events, node_events, trial_events
from batuta.core.plan_event import carry_over
from batuta.core.world import World


def apply(world: World, event: ev.Event) -> None:
    """Brings the World up to date with one event. Deterministic, without input or output."""
    world.jobs.crowd_s += world.jobs.n * max(event.time_s - world.now_s, 0.0)
    _HANDLERS[type(event)](world, event)
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


def _time_passed(world: World, event: ev.TimePassed | ev.TransitionTimed | ev.HealthChanged) -> None:
    """Only the clock moves, which `apply` does for every event."""


_HANDLERS: dict[type, Callable[..., None]] = {
    **job_events.HANDLERS,
    **node_events.HANDLERS,
    ev.Planned: carry_over,
    ev.QuotaSet: _quota_set,
    ev.PolicySet: _policy_set,
    ev.JobHeldUp: held_up.note,
    ev.TransitionTimed: _time_passed,
    ev.HealthChanged: _time_passed,
    ev.TrialMeasured: trial_events.note,
    ev.TimePassed: _time_passed,
}
