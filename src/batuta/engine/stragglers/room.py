"""Whether a job that is held up could be elsewhere, and whether it pays to go there."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core.bitsets import bits
from batuta.core.cluster import NodeName
from batuta.core.job import NO_RESTART_S
from batuta.core.weigh import Costs, Worth, worth_of_change
from batuta.core.world import Avoided, World
from batuta.prediction.straggler import Straggle

_NEVER = Worth((0.0, float("inf")))


def room_without(world: World, row: int, nodes: Iterable[NodeName]) -> int:
    """How many GPUs of one type a job could have now on other nodes, if it left all that it has."""
    jobs, layout, table = world.jobs, world.layout, world.nodes
    job, held = jobs.jobs[row], jobs.placements[row]
    avoided = world.avoided.get(job.id, Avoided(0, 0.0)).nodes
    for name in nodes:
        avoided |= 1 << table.index.get(name, len(table.nodes))
    own = {} if held is None else held.counts()
    found = [0] * len(table.types)
    for i in bits(layout.usable & table.matching(job) & ~avoided):
        free = layout.free[i].bit_count() + own.get(table.nodes[i].name, 0)
        found[table.type_of[i]] += free - free % job.gpus_per_replica
    return max(found, default=0)


def worth_of_leaving(world: World, row: int, found: Straggle, costs: Costs = Costs()) -> Worth:  # noqa: B008
    """What a job gains when its slow ranks become as fast as most, and what a restart costs.

    A step takes as long as the slowest needs for its part, and what all do together after that.
    """
    jobs, job = world.jobs, world.jobs.jobs[row]
    speed, restart_s = float(jobs.f("rate")[row]), float(jobs.f("restart_s")[row])
    if speed <= 0 or restart_s >= NO_RESTART_S or job.is_lost_by_a_stop:
        return _NEVER
    progress = world.progress.get(job.id)
    step_s = max(found.own_s, (progress.step_s if progress is not None else None) or 0.0)
    faster = speed * step_s / (step_s - (found.own_s - found.usual_s))
    lost_s = speed * (job.checkpoint_interval_s or 0.0) / 2
    return worth_of_change(speed, faster, float(jobs.f("remaining_s")[row]), restart_s, lost_s, costs)
