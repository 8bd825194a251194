"""Tells the engine how busy the GPUs of local mode are: seldom, and only what has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from batuta.core.cluster import NodeName
from batuta.core.event import GpusUsed
from batuta.core.job import JobId
from batuta.core.utilisation import IDLE_AT
from batuta.core.world import World
from batuta.engine.fence import Fence, FencedThread

LOOK_S = 10.0
TELL_S = LOOK_S  # a node is told of at most this often, …
REFRESH_S = 300.0  # … and at least this often, so that what is told does not grow stale
CHANGE = 0.1  # so much busier or less busy is worth telling
PART = "GPU use"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """How busy the GPUs of a node were since the last look; None where that is not known."""

    gpus: tuple[float | None, ...]
    jobs: Mapping[JobId, float] = field(default_factory=dict)  # what each job had of its busiest GPU
    knows_all_jobs: bool = False  # a job that is not named used nothing


class UseSource(Protocol):
    """Measures. For one thread."""

    step_s: float

    def sample(self) -> None:
        """Take a sample, of those of which a look gives the mean."""

    def look(self) -> Mapping[NodeName, NodeUse]:
        """Return how busy GPUs were since the last look, or lately."""


class UsageWatch:
    """Looks at the GPUs in a thread of its own. `tell` gets what the engine should know, as a request."""

    def __init__(
        self,
        source: UseSource,
        tell: Callable[[Callable[[World], Sequence[GpusUsed]]], object],
        clock: Callable[[], float] = time.time,
        fence: Fence | None = None,
    ) -> None:
        self._source, self._tell, self._clock = source, tell, clock
        self._stop = threading.Event()
        self._fence = fence or Fence()
        self._thread: FencedThread | None = None
        self._latest: Mapping[NodeName, NodeUse] = {}
        self._told: dict[NodeName, GpusUsed] = {}

    def start(self) -> None:
        self._thread = self._fence.start(PART, self._run)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LOOK_S)

    def latest(self, node: NodeName) -> dict[int, float]:
        """By GPU: how busy it was at the last look, from 0 to 1. For any thread."""
        use = self._latest.get(node)
        return {} if use is None else {gpu: busy for gpu, busy in enumerate(use.gpus) if busy is not None}

    def look(self) -> list[GpusUsed]:
        """Measures, and says what is worth telling."""
        now_s = self._clock()
        self._latest = found = self._source.look()
        worth = [
            GpusUsed(now_s, node, use.gpus)
            for node, use in found.items()
            if _is_worth_telling(self._told.get(node), use, now_s)
        ]
        self._told |= {event.node: event for event in worth}
        return worth

    def tell(self) -> None:
        """Looks, and tells the engine what is worth it."""
        worth = self.look()
        if worth:
            use = self._latest
            self._tell(lambda world: _with_sharers(world, worth, use))

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._stop.wait(self._source.step_s):
            with self._fence.around(PART):
                self._source.sample()
                if time.monotonic() >= looked_s + LOOK_S:
                    looked_s = time.monotonic()
                    self.tell()


def _is_worth_telling(told: GpusUsed | None, use: NodeUse, now_s: float) -> bool:
    if told is None or len(told.gpus) != len(use.gpus):
        return True
    since_s = now_s - told.time_s
    if since_s < TELL_S:
        return False
    return since_s >= REFRESH_S or any(map(_differs, told.gpus, use.gpus))


def _differs(told: float | None, now: float | None) -> bool:
    if told is None or now is None:
        return told is not now
    return abs(told - now) > CHANGE or (told <= IDLE_AT) != (now <= IDLE_AT)


def _with_sharers(world: World, events: Sequence[GpusUsed], use: Mapping[NodeName, NodeUse]) -> list[GpusUsed]:
    """The same with what jobs that share a card had of it: that a card is busy does not tell by whom."""
    on: dict[NodeName, list[JobId]] = {}
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        if job.share is not None and placement is not None:
            on.setdefault(placement.spans[0].node, []).append(job.id)
    found = []
    for event in events:
        own, jobs = use[event.node], on.get(event.node, ())
        parts = [(job, own.jobs[job]) for job in jobs if job in own.jobs]
        if own.knows_all_jobs:
            parts += [(job, 0.0) for job in jobs if job not in own.jobs]
        found.append(replace(event, time_s=max(event.time_s, world.now_s), jobs=tuple(parts)))
    return found
