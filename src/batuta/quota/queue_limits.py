"""Quota by queue: each queue's jobs together stay within what the queue may use."""

from __future__ import annotations

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import IntArray
from batuta.core.pools import assign_types
from batuta.core.reason import Evidence, Reason
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
        cap = jobs.i("max").copy()
        refused: dict[int, tuple[Reason, Evidence]] = {}
        gpu_type = assign_types(world, world.capacity())
        for queue in limited:
            index = jobs.queues.get(queue.name)
            if index is None:
                continue
            rows = np.flatnonzero(jobs.i("queue") == index)
            if queue.held:
                rows = self._hold(world, rows, cap, refused)
            for type_name, quota in queue.quota:
                self._limit(world, self._counted(world, rows, gpu_type, type_name), quota, cap, refused)
        return Admitted(cap, refused, gpu_type)

    def _hold(
        self, world: World, rows: IntArray, cap: IntArray, refused: dict[int, tuple[Reason, Evidence]]
    ) -> IntArray:
        """A held queue starts nothing; what runs goes on at its size."""
        gpus = world.jobs.i("gpus")[rows]
        for row in rows[gpus == 0].tolist():
            cap[row] = 0
            refused[row] = (Reason.QUEUE_HELD, ())
        cap[rows] = np.minimum(cap[rows], gpus)
        return rows[gpus > 0]

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
        rows: IntArray,
        quota: int,
        cap: IntArray,
        refused: dict[int, tuple[Reason, Evidence]],
    ) -> None:
        jobs = world.jobs
        rows = rows[cap[rows] > 0]
        order = np.lexsort((jobs.i("gpus")[rows] == 0, -jobs.i("priority")[rows]))
        rows = rows[order]
        left = quota
        kept: list[int] = []
        low = jobs.i("min")
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
        self._divide(world, np.array(kept, dtype=np.int64), left, cap, refused)

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
