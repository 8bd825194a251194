"""How long decisions take: a watcher of the engine that keeps count, and passes everything on."""

from __future__ import annotations

import time
from bisect import bisect_left

from batuta.core.event import Event
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.loop import Watcher

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class CycleWatch:
    """Counts cycles and their times. The engine's thread writes, others read: all are single numbers."""

    def __init__(self, inner: Watcher | None = None) -> None:
        self._inner = inner
        self._begun = 0.0
        self.count = 0
        self.last_s = 0.0
        self.total_s = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        """By upper bound in BUCKETS_S, not summed up; the last is for all that took longer."""

    def saw(self, world: World, event: Event) -> None:
        if self._inner is not None:
            self._inner.saw(world, event)

    def deciding(self) -> None:
        self._begun = time.perf_counter()
        if self._inner is not None:
            self._inner.deciding()

    def decided(self, world: World, plan: Plan) -> None:
        self.last_s = time.perf_counter() - self._begun
        self.total_s += self.last_s
        self.buckets[bisect_left(BUCKETS_S, self.last_s)] += 1
        self.count += 1
        if self._inner is not None:
            self._inner.decided(world, plan)

    def postponed(self, world: World) -> None:
        if self._inner is not None:
            self._inner.postponed(world)
