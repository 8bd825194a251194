"""Where the time of all GPUs goes, second by second: the running account behind a counter.

The account of `batuta report` is exact and reads the journal. This one is kept by the engine's thread at the
price of two sums over a column in each step, so that a scrape costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from batuta.core.event import (
    Event,
    GpuFailed,
    GpuRepaired,
    NodeAdded,
    NodeChanged,
    NodeLost,
    NodeReturned,
)
from batuta.core.job_table import Phase
from batuta.core.world import World

USES = ("used", "idle", "restarting", "free", "unavailable")
"""Held by jobs that run; by jobs that run and do nothing; by jobs that start, stop or change; by nobody; and
those that are lost, ill, cordoned, or used by others."""
_CAPACITY = (NodeAdded, NodeChanged, NodeLost, NodeReturned, GpuFailed, GpuRepaired)


class GpuTime:
    """GPU-seconds by use. One thread keeps it, any may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = dict.fromkeys(USES, 0.0)
        self._held = dict.fromkeys(USES, 0)
        """GPUs by use since the last look."""
        self._told = dict.fromkeys(USES, 0.0)
        self._at_s: float | None = None
        self._version = -1
        self._capacity: int | None = None

    def saw(self, event: Event) -> None:
        if isinstance(event, _CAPACITY):
            self._capacity = None

    def go_on(self, world: World) -> None:
        """Books the time since the last look, and looks again."""
        held = self._held if world.version == self._version else self._look(world)
        with self._lock:
            if self._at_s is not None and world.now_s > self._at_s:
                for use in USES:
                    self._total[use] += self._held[use] * (world.now_s - self._at_s)
            self._at_s = world.now_s if self._at_s is None else max(self._at_s, world.now_s)
            self._held, self._version = held, world.version

    def at(self, now_s: float) -> Mapping[str, float]:
        """GPU-seconds by use up to now. No number is ever less than one that was told before."""
        with self._lock:
            since_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
            for use in USES:
                self._told[use] = max(self._told[use], self._total[use] + self._held[use] * since_s)
            return dict(self._told)

    def _look(self, world: World) -> dict[str, int]:
        if self._capacity is None:
            self._capacity = sum(node.gpus for node in world.nodes.nodes)
        jobs = world.jobs
        gpus, phase = jobs.i("gpus"), jobs.i("phase")
        held = int(gpus.sum())
        running = int(gpus[phase == np.int64(Phase.RUNNING)].sum())
        idle = sum(
            int(gpus[jobs.row(job)])
            for job, known in world.idle.items()
            if known.since_s is not None and job in jobs and jobs.phase_of(jobs.row(job)) is Phase.RUNNING
        )
        # A card that several jobs share is one.
        twice = sum(card.shares - 1 for card in world.layout.cards.values())
        used = max(0, running - idle - twice)
        restarting, free = held - running, world.layout.total_free
        unavailable = max(0, self._capacity - used - idle - restarting - free)
        return dict(zip(USES, (used, idle, restarting, free, unavailable), strict=True))
