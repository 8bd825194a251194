"""How long jobs that are over are kept in mind: so many of them, and so long."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from batuta.core.event import Event, JobForgotten
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.observed_time import ObservedTime
from batuta.engine.requests import EngineStopped, RequestFn

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 10.0
_AT_ONCE = 200  # jobs that are forgotten in one step, so that no request has to wait for it


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept: the jobs that ended last, up to a number, as long as they are young."""

    jobs: int = 10_000
    age_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        if self.jobs < 0:
            raise ValueError(f"jobs must be ≥ 0, found {self.jobs}")
        if not 0 < self.age_s <= math.inf:
            raise ValueError(f"age_s must be > 0, found {self.age_s}")


def outlived(world: World, keep: Keep, before_s: float, most: int) -> list[JobId]:
    """The jobs that are kept no longer, the one that ended first before all others; at most so many.

    Those that ended before a time are too old.
    """
    found: list[JobId] = []
    too_many = len(world.past) - keep.jobs
    for number, past in enumerate(world.past.values()):
        if len(found) == most or (number >= too_many and past.end_s >= before_s):
            break
        found.append(past.job.id)
    return found


@dataclass(slots=True, eq=False)
class Retention:
    """Has the engine forget jobs, with all that is left of them. For the engine's thread.

    Files go first, then the event is written: a server killed in between finds a job without files, and
    forgets it the next time. The other way round its files would stay for ever.
    """

    keep: Keep
    ask: Callable[[RequestFn], object]
    remove: Callable[[JobId], None]
    time: ObservedTime
    _next_s: float = -math.inf

    def after_step(self, world: World) -> None:
        steady_s = self.time.steady()
        if steady_s < self._next_s:
            return
        self._next_s = steady_s + _LOOK_EVERY_S
        if outlived(world, self.keep, self.time.before_s(self.keep.age_s), 1):
            with suppress(EngineStopped):
                self.ask(self._forget)

    def _forget(self, world: World) -> Sequence[Event]:
        now_s = self.time.clock()
        jobs = outlived(world, self.keep, self.time.before_s(self.keep.age_s), _AT_ONCE)
        if len(jobs) == _AT_ONCE:
            self._next_s = -math.inf  # there may be more
        return [JobForgotten(max(now_s, world.now_s), job) for job in jobs if self._is_removed(job)]

    def _is_removed(self, job: JobId) -> bool:
        try:
            self.remove(job)
        except (OSError, ValueError):
            _log.exception("job %s is not forgotten: its files cannot be removed", job, extra={"job": job})
            return False
        return True
