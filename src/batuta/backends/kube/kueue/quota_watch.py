"""What the World thinks of jobs and queues, for those who show it as Kueue does: a watcher of the engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from batuta.backends.kube.kueue.queue_desk import QueueDesk
from batuta.backends.kube.kueue.queue_status import Door, used_by_door
from batuta.backends.kube.kueue.shown_desk import ShownDesk
from batuta.backends.kube.kueue.standing import standing_of
from batuta.core.event import Event, JobEnded, Planned
from batuta.core.job import JobId
from batuta.core.plan import Plan
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.loop import Watcher
from batuta.quota.measure import measure
from batuta.quota.use import JobUse, QuotaUse

SWEEP_S: Final = 1.0
"""Jobs to which nothing happens are looked at so often, …"""
SPARING: Final = 20
"""… but no more than this fraction of the time goes into it."""


class QuotaWatch:
    """Passes everything on; the engine's thread calls it."""

    def __init__(
        self,
        inner: Watcher,
        shown: ShownDesk,
        queues: QueueDesk,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._shown = shown
        self._queues = queues
        self._clock = clock
        self._touched: set[JobId] = set()
        self._sweep_s = 0.0

    def saw(self, world: World, event: Event) -> None:
        self._inner.saw(world, event)
        if isinstance(event, Planned):
            self._touched.update(command.job for command in event.plan.commands)
            return
        if isinstance(event, JobEnded):
            self._shown.ended(event.job, event.state, event.detail)
        job = getattr(event, "job", "")
        self._touched.add(job if isinstance(job, str) else job.id)

    def deciding(self) -> None:
        self._inner.deciding()

    def decided(self, world: World, plan: Plan) -> None:
        self._inner.decided(world, plan)
        now_s = self._clock()
        touched, self._touched = self._touched, set()
        is_sweep = now_s >= self._sweep_s
        if is_sweep:
            touched.update(world.jobs.short)
        for job in touched:
            if job in world.jobs:
                row = world.jobs.row(job)
                decision = plan.decisions.at(row) if row < len(plan.decisions) else None
                if decision is not None and decision.job == job:
                    self._shown.note(standing_of(world, row, decision))
        if touched:
            self._queues.doubt()
        if is_sweep:
            self._sweep_s = self._clock() + max(SWEEP_S, SPARING * (self._clock() - now_s))

    def postponed(self, world: World) -> None:
        self._inner.postponed(world)


def look_at_use(world: World) -> tuple[QuotaUse, dict[Door, Counter[tuple[str, str]]]]:
    """What all queues use, and what each local queue does."""
    jobs = list(_uses(world))
    return measure(world.quota, jobs), used_by_door(jobs)


def _uses(world: World) -> Iterator[JobUse]:
    """All jobs, as quota sees them."""
    jobs, gpus = world.jobs, world.jobs.i("gpus")
    for row, job in enumerate(jobs.jobs):
        has = jobs.placements[row] is not None
        is_wanted = jobs.wish_of(row) is Wish.RUN
        flavors = world.flavors.get(job.id, ()) if has else ()
        yield JobUse(job, int(gpus[row]), not has, not has and not is_wanted, flavors)
