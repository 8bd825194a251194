"""Quota by queue: each queue's jobs together stay within what the queue may use."""

from __future__ import annotations

import numpy as np

from batuta.core import pools
from batuta.core.admission import Admitted
from batuta.core.arrays import IntArray
from batuta.core.cluster import Queue
from batuta.core.reach import within_reach
from batuta.core.reason import Evidence, Reason
from batuta.core.withhold import in_motion_or_left_alone
from batuta.core.world import World

ALL_TYPES = "*"


class QueueLimits:
    """Reserves quota for the `min` of each job, then divides what is left, one step at a time and in turns.

    Within a queue a higher priority goes first, then what already runs, then (submit time, id). A job that
    does not fit is passed by later ones. Borrowing between queues is not part of it.
    """

    def admit(self, world: World, now_s: float) -> Admitted:
        limited = [queue for queue in world.queues.values() if queue.held or queue.quota]
        if not limited:
            return Admitted()
        jobs = world.jobs
        refused: dict[int, tuple[Reason, Evidence]] = {}
        gpu_type = pools.assign_types(world, world.capacity(), self._by_type(world, limited))
        # A job that could not run even if it were alone uses no quota that others could use.
        cap, _ = within_reach(world, np.where(gpu_type < 0, 0, jobs.i("max")), gpu_type)
        assert cap is not None
        for queue in limited:
            index = jobs.queues.get(queue.name)
            if index is None:
                continue
            rows = np.flatnonzero(jobs.i("queue") == index)
            if queue.held:
                self._hold(world, rows, cap, refused)
            # The limit on all types comes last: whoever is refused by its type's limit uses nothing of it.
            for type_name, quota in sorted(queue.quota, key=lambda limit: limit[0] == ALL_TYPES):
                counted = self._counted(world, rows, gpu_type, type_name)
                self._limit(world, now_s, counted, quota, cap, refused)
        return Admitted(cap, refused, gpu_type)

    def _by_type(self, world: World, limited: list[Queue]) -> dict[tuple[int, int], int]:
        """The quota of a queue in a type or in all, by the numbers of both; a held queue starts nothing."""
        queues, types = world.jobs.queues, world.nodes.types
        limits: dict[tuple[int, int], int] = {}
        for queue in limited:
            if queue.name not in queues:
                continue
            index = queues[queue.name]
            for type_name, quota in queue.quota:
                if type_name == ALL_TYPES:
                    limits[index, pools.ALL_TYPES] = quota
                elif type_name in types:
                    limits[index, types.index(type_name)] = quota
            if queue.held:
                limits[index, pools.ALL_TYPES] = 0
        return limits

    def _hold(
        self, world: World, rows: IntArray, cap: IntArray, refused: dict[int, tuple[Reason, Evidence]]
    ) -> None:
        """A held queue starts nothing; what runs goes on at its size, also when it has to be repaired."""
        jobs = world.jobs
        own = np.minimum(cap[rows], jobs.i("gpus")[rows] + jobs.i("lost_gpus")[rows])
        own[own < jobs.i("min")[rows]] = 0
        cap[rows] = own
        refused.update((row, (Reason.QUEUE_HELD, ())) for row in rows.tolist())

    def _counted(self, world: World, rows: IntArray, gpu_type: IntArray, type_name: str) -> IntArray:
        """The jobs of a queue that a quota is about."""
        if type_name == ALL_TYPES:
            return rows
        if type_name not in world.nodes.types:
            return rows[:0]
        counted: IntArray = rows[gpu_type[rows] == world.nodes.types.index(type_name)]
        return counted

    def _limit(
        self,
        world: World,
        now_s: float,
        rows: IntArray,
        quota: int,
        cap: IntArray,
        refused: dict[int, tuple[Reason, Evidence]],
    ) -> None:
        jobs = world.jobs
        left = quota
        moving = in_motion_or_left_alone(jobs, now_s)
        if moving is not None:
            # A job in transition is left alone and keeps what it has, as does one that could not be made
            # whole just now; the others share the rest.
            fixed, rows = rows[moving[rows]], rows[~moving[rows]]
            cap[fixed] = np.minimum(cap[fixed], jobs.i("gpus")[fixed])
            left = max(left - int(jobs.i("gpus")[fixed].sum()), 0)
        low = jobs.i("min")
        rows = rows[cap[rows] >= low[rows]]
        order = np.lexsort((jobs.i("gpus")[rows] == 0, -jobs.i("priority")[rows]))
        rows = rows[order]
        kept: list[int] = []
        for row in rows.tolist():
            if low[row] <= left:
                left -= int(low[row])
                kept.append(row)
            else:
                cap[row] = 0
                numbers: Evidence = (
                    ("needs", int(low[row])),
                    ("quota_left", left),
                    ("quota", quota),
                )
                refused[row] = (Reason.QUOTA_EXHAUSTED, numbers)
        # Whoever runs goes first above, so that it stays; here that would make sizes depend on who runs.
        by_priority = sorted(kept, key=lambda row: (-int(jobs.i("priority")[row]), row))
        self._divide(world, np.array(by_priority, dtype=np.int64), left, cap, refused)

    def _divide(
        self,
        world: World,
        rows: IntArray,
        left: int,
        cap: IntArray,
        refused: dict[int, tuple[Reason, Evidence]],
    ) -> None:
        """Hands out the quota above the minimums in turns; nothing to do when all of it fits."""
        jobs = world.jobs
        sizes = jobs.legal_sizes().subset(rows)
        wanted = cap[rows]
        given = sizes.min.copy()
        if int((wanted - given).sum()) > left:
            while True:
                step = sizes.next(given) - given
                step[(given + step > wanted) | (step > left)] = 0
                step[np.cumsum(step) > left] = 0
                if not step.any():
                    break
                given += step
                left -= int(step.sum())
            for row in rows[given < wanted].tolist():
                refused[row] = (Reason.QUOTA_REACHED, ())
            cap[rows] = given
