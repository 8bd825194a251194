"""Tries changes out on a copy of the World: does the job start?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from batuta.core.apply import apply
from batuta.core.command import Preempt, Resize, Start
from batuta.core.decide import Rules, decide
from batuta.core.event import Event
from batuta.core.job import Job, JobId
from batuta.core.plan import Plan
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.suggest.suggestion import Facts, Remedy, Suggestion

T = TypeVar("T")


class Trials:
    """A World to ask "what if" of, as often as there are trials left. It is never changed."""

    def __init__(
        self, world: World, now_s: float, job: JobId, rules_of: Callable[[], Rules], most: int
    ) -> None:
        self.world, self.now_s = world, now_s
        self.job: Job = world.jobs.jobs[world.jobs.row(job)]
        self.left = most
        self._rules_of = rules_of

    def start_after(self, events: Iterable[Event]) -> Plan | None:
        """The plan that starts the job once these have happened; None if it does not start, or none is left.

        Rules are made anew, because admission remembers what it saw last.
        """
        if self.left <= 0:
            return None
        self.left -= 1
        fork = self.world.fork()
        for event in events:
            apply(fork, event)
        plan = decide(fork, self.now_s, replace(self._rules_of(), explains=False))
        return plan if _start_of(plan, self.job.id) else None

    def suggestion(
        self, remedy: Remedy, facts: Facts, events: Sequence[Event], within_s: float | None = None
    ) -> Suggestion | None:
        """The change as a suggestion if it starts the job."""
        plan = self.start_after(events)
        start = None if plan is None else _start_of(plan, self.job.id)
        if plan is None or start is None:
            return None
        return Suggestion(
            remedy,
            facts,
            start.placement.size,
            tuple(one.job for one in plan.commands if isinstance(one, Preempt)),
            tuple(
                one.job for one in plan.commands if isinstance(one, Resize) and one.reason is not Reason.GREW
            ),
            tuple(events),
            within_s,
        )


def _start_of(plan: Plan, job: JobId) -> Start | None:
    return next((one for one in plan.commands if isinstance(one, Start) and one.job == job), None)


def first_that_works(count: int, try_nth: Callable[[int], T | None]) -> T | None:
    """What the smallest n of 1 to `count` gives that gives anything, if all above it do too.

    Where that does not hold it is one that works, maybe not the smallest.
    """
    if count < 1:
        return None
    best = try_nth(count)
    if best is None:
        return None
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        found = try_nth(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best
