"""How a job reaches a cluster queue, and what keeps it out."""

from __future__ import annotations

from typing import NamedTuple

from batuta.core.quota import DEFAULT_QUEUE, EffectiveQuota, LocalQueue, Quota, StopPolicy
from batuta.core.world import World
from batuta.quota.refusal import Refusal, Why


class Door(NamedTuple):
    """The cluster queue of a job; with a refusal nothing new starts there now."""

    queue: str
    refusal: Refusal | None = None
    drains: bool = False
    """What runs there has to leave."""


def doors_of(world: World, known: dict[tuple[str, str], Door | None]) -> list[Door | None]:
    """By the number of a queue that jobs name: how they reach their cluster queue.

    None for jobs that quota does not concern: they name no queue, and quota limits nobody's GPUs. What is
    found out is entered into `known`, by namespace and name.
    """
    quota = world.effective_quota
    is_limited = isinstance(quota, EffectiveQuota)
    for namespace, name in world.jobs.queues:
        if (namespace, name) not in known:
            way = quota.way(namespace, name)
            concerned = way is not None or is_limited or name != DEFAULT_QUEUE
            known[namespace, name] = open_door(quota, way, name) if concerned else None
    return [known[way] for way in world.jobs.queues]


def open_door(quota: Quota, way: LocalQueue | None, name: str) -> Door:
    """Where a job gets that names a queue, by the local queue that was found for it."""
    if way is None:
        return Door("", Refusal(Why.MISCONFIGURED, f"there is no queue {name}"))
    queue = quota.queue_of.get(way.cluster_queue)
    if queue is None:
        text = f"queue {name} leads to the cluster queue {way.cluster_queue}, which is not there"
        return Door("", Refusal(Why.MISCONFIGURED, text))
    drains = StopPolicy.HOLD_AND_DRAIN in (queue.stop, way.stop)
    missing = dict.fromkeys(
        one.flavor for group in queue.groups for one in group.flavors if one.flavor not in quota.flavor_of
    )
    if missing:
        text = f"cluster queue {queue.name} has quota in flavors that are not there: {', '.join(missing)}"
        return Door(queue.name, Refusal(Why.MISCONFIGURED, text), drains)
    if queue.name in quota.leaving:
        return Door(
            queue.name, Refusal(Why.SUSPENDED, f"cluster queue {queue.name} is being removed"), drains
        )
    if queue.stop is not StopPolicy.NONE:
        return Door(queue.name, Refusal(Why.SUSPENDED, f"cluster queue {queue.name} is held"), drains)
    if way.stop is not StopPolicy.NONE:
        return Door(queue.name, Refusal(Why.SUSPENDED, f"queue {name} is held"), drains)
    return Door(queue.name)
