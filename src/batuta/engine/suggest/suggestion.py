"""A change that would start a job, as words and as events, tried out on a copy of the World."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeVar

from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import Event
from batuta.core.job import Job, JobId
from batuta.core.plan import Plan, Preempt, Resize, Start
from batuta.core.reason import Reason
from batuta.core.world import World

Facts: TypeAlias = tuple[tuple[str, str | float], ...]
"""Names and numbers of a suggestion, in the order in which people should read them."""

_ONE = re.compile(r"\b1 (more )?(GPU|node|job)s\b")


class Remedy(Enum):
    """The kinds of change. Each has a sentence; `{name}` in it is filled from the facts."""

    FEWER_GPUS = "if it asked for {gpus:g} GPUs instead of {asked:g}"
    ANOTHER_TYPE = "if it accepted GPUs of type {gpu_type}"
    ANOTHER_QUEUE = "in queue {queue} instead of {own}"
    MORE_QUOTA = "if cluster queue {queue} had quota for {amount:g} more {unit} of flavor {flavor}"
    QUEUE_RELEASED = "if queue {queue} was not held"
    WITHOUT_TOPOLOGY = "without its topology requirement"
    WITHOUT_NODE_WISHES = "without its node selector"
    NODE_BACK = "if node {node} was in service"
    MORE_NODES = "with {nodes:g} more nodes like {like}"
    JOB_ENDS = "when job {job} ends"
    JOBS_END = "when {jobs:g} of the jobs that run have ended, {last} as the last of them"
    STARTED_AGAIN = "if it was started again: it is parked, is tried out first, or waits after a failure"

    def sentence(self, facts: Facts) -> str:
        return _ONE.sub(r"1 \1\2", self.value.format(**dict(facts)))


@dataclass(frozen=True, slots=True)
class Suggestion:
    """With this change, and nothing else, the next decision starts the job. That was tried out."""

    remedy: Remedy
    facts: Facts
    gpus: int
    """What the job would start with."""
    stops: tuple[JobId, ...]
    """Jobs that would lose all their GPUs for it."""
    shrinks: tuple[JobId, ...]
    """Jobs that would have fewer."""
    events: tuple[Event, ...]
    """The change itself."""
    within_s: float | None = None
    """When it is expected to come about by itself; None for what a user has to do."""

    def __str__(self) -> str:
        return self.remedy.sentence(self.facts)


T = TypeVar("T")


class Trials:
    """A World to ask "what if" of, as often as there are trials left. It is never changed."""

    def __init__(
        self, world: World, now_s: float, job: JobId, rules_of: Callable[[], SchedulerProfile], most: int
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
            tuple(one.job for one in plan.commands if isinstance(one, Resize) and one.reason is not Reason.GREW),
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
