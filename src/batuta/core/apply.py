"""`apply`: the only way in which the World changes."""

from __future__ import annotations

from collections.abc import Callable

from batuta.core import event as ev
from batuta.core import job_events, node_events
from batuta.core.plan_event import carry_over
from batuta.core.world import World


def apply(world: World, event: ev.Event) -> None:
    """Brings the World up to date with one event. Deterministic, without input or output."""
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


def _queue_set(world: World, event: ev.QueueSet) -> None:
    world.queues[event.queue.name] = event.queue


def _policy_set(world: World, event: ev.PolicySet) -> None:
    world.policy = event.policy


def _time_passed(world: World, event: ev.TimePassed | ev.TransitionTimed) -> None:
    """Only the clock moves, which `apply` does for every event."""


_HANDLERS: dict[type, Callable[..., None]] = {
    **job_events.HANDLERS,
    **node_events.HANDLERS,
    ev.Planned: carry_over,
    ev.QueueSet: _queue_set,
    ev.PolicySet: _policy_set,
    ev.TransitionTimed: _time_passed,
    ev.TimePassed: _time_passed,
}
