"""A change that would start a job, as a value: what it is, in words, and as the events that make it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from batuta.core.event import Event
from batuta.core.job import JobId

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
    WITHOUT_TOPOLOGY = "without the wish that its GPUs lie close together"
    WITHOUT_NODE_WISHES = "without its wishes for labels of nodes"
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
    """When it is expected to come about by itself; None for what somebody has to do."""

    def __str__(self) -> str:
        return self.remedy.sentence(self.facts)
