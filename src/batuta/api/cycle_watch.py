"""What the engine does, in numbers: a watcher that counts, and passes everything on."""

from __future__ import annotations

import time
from bisect import bisect_left

from batuta.api.event_counts import EventCounts
from batuta.api.gpu_time import GpuTime
from batuta.api.schedule_counts import ScheduleCounts
from batuta.core.decide import STEPS
from batuta.core.event import Event
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.loop import Watcher

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CARRY_OUT = "carry out"
"""What a cycle does after its last step: the plan is written down and its commands are given."""


class CycleWatch:
    """Counts cycles and their times. The engine's thread writes, others read: all are single numbers."""

    def __init__(self, inner: Watcher | None = None) -> None:
        self._inner = inner
        self._begun = self._lap = 0.0
        self.count = 0
        self.last_s = 0.0
        self.total_s = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        """By upper bound in BUCKETS_S, not summed up; the last is for all that took longer."""
        self.step_buckets = {step: [0] * (len(BUCKETS_S) + 1) for step in (*STEPS, CARRY_OUT)}
        self.step_total_s = dict.fromkeys(self.step_buckets, 0.0)
        self.events = EventCounts()
        self.schedule = ScheduleCounts()
        self.gpu_time = GpuTime()

    def saw(self, world: World, event: Event) -> None:
        self.events.count(event)
        self.schedule.count(world, event)
        self.gpu_time.saw(event)
        if self._inner is not None:
            self._inner.saw(world, event)

    def deciding(self) -> None:
        self._begun = self._lap = time.perf_counter()
        if self._inner is not None:
            self._inner.deciding()

    def after_step(self, step: str) -> None:
        """A step of the decision is done; for the engine, which hands it to `decide`."""
        before, self._lap = self._lap, time.perf_counter()
        took_s = self._lap - before
        self.step_total_s[step] += took_s
        self.step_buckets[step][bisect_left(BUCKETS_S, took_s)] += 1

    def decided(self, world: World, plan: Plan) -> None:
        if not plan.empty:
            self.after_step(CARRY_OUT)
        self.last_s = time.perf_counter() - self._begun
        self.total_s += self.last_s
        self.buckets[bisect_left(BUCKETS_S, self.last_s)] += 1
        self.count += 1
        self.gpu_time.go_on(world)
        if self._inner is not None:
            self._inner.decided(world, plan)

    def postponed(self, world: World) -> None:
        self.gpu_time.go_on(world)
        if self._inner is not None:
            self._inner.postponed(world)
