"""Which GPU type each job competes for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from batuta.core.arrays import IntArray
from batuta.core.job import Job
from batuta.core.reach import wishes_of
from batuta.core.world import World

NO_TYPE = -1
ALL_TYPES = -1
"""Stands for the number of a GPU type in a limit on all of them together."""

Limits = Mapping[tuple[int, int], int]
"""How many GPUs of a type the jobs of a queue may have, by the numbers of both."""


def assign_types(world: World, capacity: list[int], limits: Limits | None = None) -> IntArray:
    """One GPU type per row: what a job has, else the fastest accepted one with room for its `min`.

    Policies that see one type at a time need this. Room is counted in row order: an early job has its choice.
    """
    jobs, types = world.jobs, world.nodes.types
    result = jobs.i("gpu_type").copy()
    held: list[int] = result.tolist()
    low: list[int] = jobs.i("min").tolist()
    quota = _QuotaUse(world, limits or {})
    room = list(capacity)
    for row, (kind, need) in enumerate(zip(held, low, strict=True)):
        if kind >= 0:
            room[kind] -= need
            quota.claim(row, kind, need)
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
            if jobs.narrow or limits:
                possible = _possible(world, row, need, accepted, quota)
                if not possible:
                    # It cannot run, so it takes no room from others.
                    result[row] = accepted[0]
                    continue
                accepted = possible
            # With no room anywhere the job queues where the queue is shortest for the size of the pool.
            kind = next(
                (k for k in accepted if room[k] >= need),
                next(
                    (k for k in accepted if capacity[k] - ahead[k] >= need),
                    min(accepted, key=lambda k: (ahead[k] / max(capacity[k], 1), k)),
                ),
            )
            result[row] = kind
            if limits and not quota.claim(row, kind, need):
                # Its queue has used up its quota, so it takes no room now. If it did, others would be sent to
                # other types whenever the room for a job that does not start comes and goes.
                continue
            room[kind] -= need
        ahead[kind] += need
    return result


def _possible(world: World, row: int, need: int, accepted: list[int], quota: _QuotaUse) -> list[int]:
    """The types that can ever have enough for a job, and of which its queue may use as much."""
    most = world.reach[wishes_of(world.jobs.jobs[row])]
    return [kind for kind in accepted if most[kind] >= need and quota.allows(row, kind, need)]


class _QuotaUse:
    """What the jobs of each queue that has a quota need of it, by priority."""

    __slots__ = ("_claims", "_limits", "_priority", "_queue")

    def __init__(self, world: World, limits: Limits) -> None:
        self._limits = limits
        self._queue: list[int] = world.jobs.i("queue").tolist() if limits else []
        self._priority: list[int] = world.jobs.i("priority").tolist() if limits else []
        self._claims: dict[tuple[int, int], Counter[int]] = {}

    def allows(self, row: int, kind: int, need: int) -> bool:
        """Whether a job could have so much if nobody else used the quota of its queue."""
        if not self._limits:
            return True
        queue = self._queue[row]
        return all(self._limits.get((queue, k), need) >= need for k in (kind, ALL_TYPES))

    def claim(self, row: int, kind: int, need: int) -> bool:
        """Notes what a job needs, unless those that go first have left less: its queue refuses it then.

        A higher priority goes first, then what was claimed before.
        """
        if not self._limits:
            return True
        queue, priority = self._queue[row], self._priority[row]
        limited = [(queue, k) for k in (kind, ALL_TYPES) if (queue, k) in self._limits]
        for key in limited:
            claims = self._claims.setdefault(key, Counter())
            first = sum(gpus for level, gpus in claims.items() if level >= priority)
            if first + need > self._limits[key]:
                return False
        for key in limited:
            self._claims[key][priority] += need
        return True


def _accepted(job: Job, types: list[str], order: list[int]) -> list[int]:
    if not job.gpu_types:
        return order
    speeds = dict(job.gpu_types)
    known = [kind for kind in order if types[kind] in speeds]
    return sorted(known, key=lambda kind: -speeds[types[kind]])
