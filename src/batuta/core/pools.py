"""Which GPU type each job competes for."""

from __future__ import annotations

from collections.abc import Mapping, Set

from batuta.core.arrays import IntArray
from batuta.core.job import Job
from batuta.core.world import World


def assign_types(
    world: World,
    capacity: list[int],
    possible: Mapping[int, Set[int]] | None = None,
    idle: Set[int] = frozenset(),
) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    `possible` has the types of rows that cannot have all; `idle` are rows that do not start whatever is free,
    so they take no room. If they did, others would be sent to other types whenever it comes and goes.
    """
    jobs, types = world.jobs, world.nodes.types
    result = jobs.i("gpu_type").copy()
    held: list[int] = result.tolist()
    low: list[int] = jobs.i("min").tolist()
    room = list(capacity)
    for kind, need in zip(held, low, strict=True):
        if kind >= 0:
            room[kind] -= need
    # What those before have or wait for. It does not change when somebody behind is started or stopped for a
    # job that waits: if it did, the job would be sent to another type, and all would go round in circles.
    ahead = [0] * len(types)
    order = sorted(range(len(types)), key=lambda kind: (-capacity[kind], kind))
    for row, need in enumerate(low):
        kind = held[row]
        if kind < 0:
            accepted = _accepted(jobs.jobs[row], types, order)
            if not accepted:
                continue
            if jobs.narrow or possible:
                most = world.most_for(row)
                allowed = possible.get(row) if possible else None
                within = (
                    [k for k in accepted if most[k] >= need]
                    if allowed is None
                    else [k for k in accepted if k in allowed]
                )
                if not within:
                    # It cannot run, so it takes no room from others.
                    result[row] = accepted[0]
                    continue
                accepted = within
            # With no room anywhere the job queues where the queue is shortest for the size of the pool.
            kind = next(
                (k for k in accepted if room[k] >= need),
                next(
                    (k for k in accepted if capacity[k] - ahead[k] >= need),
                    min(accepted, key=lambda k: (ahead[k] / max(capacity[k], 1), k)),
                ),
            )
            result[row] = kind
            if row in idle:
                continue
            room[kind] -= need
        ahead[kind] += need
    return result


def _accepted(job: Job, types: list[str], order: list[int]) -> list[int]:
    if not job.gpu_types:
        return order
    speeds = dict(job.gpu_types)
    known = [kind for kind in order if types[kind] in speeds]
    return sorted(known, key=lambda kind: -speeds[types[kind]])
