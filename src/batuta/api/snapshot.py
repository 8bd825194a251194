"""Snapshots of the World, which requests read without the engine's lock.

All requests share a snapshot as long as it shows everything that a client can know: the effect of every
answered request and of every published event. The engine has a new one taken before it answers a request, so
that a client that changed something does not wait for the next cycle. Otherwise a snapshot may be a moment
old. Past jobs never change, so each is copied once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import anyio.to_thread
import numpy as np

from batuta.api.scheduler_counters import SchedulerCounters
from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.cluster import Node, Placement
from batuta.core.job import DesiredState, Job, JobId, JobState, Progress
from batuta.core.job_table import JobColumns, Phase
from batuta.core.plan import Decision, Plan
from batuta.core.quota import Flavors, Quota
from batuta.core.world import PastJob, World
from batuta.engine.service import Service
from batuta.quota.usage import JobUse, QuotaUse, flavors_held, measure

Key: TypeAlias = tuple[float, int, JobId]  # the order of lists: by submit time, then as they came

_BY_PHASE: dict[Phase, JobState] = {
    Phase.WAITING: JobState.PENDING,
    Phase.STOPPING: JobState.PENDING,
    Phase.STARTING: JobState.SETTING_UP,
    Phase.RUNNING: JobState.RUNNING,
    Phase.RESIZING: JobState.RESIZING,
    Phase.BROKEN: JobState.RESIZING,
}
_STATES = tuple(_BY_PHASE[phase] for phase in Phase)
_LIVING = (*dict.fromkeys(_STATES), JobState.PREEMPTED)
_WAITS = np.array([Phase.WAITING, Phase.STOPPING])
_SUSPENDED = np.array([DesiredState.PARK, DesiredState.CANCEL])
_MAX_AGE_S = 0.25  # how old a snapshot may be when the World has changed without a client knowing

_FEW_VIEWS = 100


def key_of(job: Job) -> Key:
    return job.submit_s, job.sequence, job.id


@dataclass(frozen=True, slots=True)
class PastJobs:
    """Past jobs: an index that all snapshots share and that only grows."""

    by_id: dict[JobId, PastJob] = field(default_factory=dict)
    order: list[tuple[Key, PastJob]] = field(default_factory=list)
    counts: Counter[JobState] = field(default_factory=Counter)

    @classmethod
    def of(cls, world: World) -> PastJobs:
        order = sorted(((key_of(past.job), past) for past in world.past.values()), key=itemgetter(0))
        return cls(dict(world.past), order, Counter(past.state for past in world.past.values()))

    def add(self, past: PastJob) -> None:
        self.by_id[past.job.id] = past
        insort(self.order, (key_of(past.job), past), key=itemgetter(0))
        self.counts[past.state] += 1


@dataclass(eq=False)
class DecisionIndex:
    """The decisions of a plan, by job: one index for all snapshots that have this plan."""

    plan: Plan | None
    mark: object = field(default_factory=object)  # stands for the plan where the plan itself is not to be kept

    @cached_property
    def _rows(self) -> dict[JobId, int]:
        ids = () if self.plan is None else self.plan.decisions.ids
        return dict(zip(ids, range(len(ids)), strict=True))

    def on(self, job: JobId, row: int | None) -> Decision | None:
        """Return the decision on a living job, which mostly has the same row in the plan."""
        if self.plan is None:
            return None
        decisions = self.plan.decisions
        if row is None or row >= len(decisions.ids) or decisions.ids[row] != job:
            row = self._rows.get(job)
        return None if row is None else decisions.at(row)


class ShownColumns(NamedTuple):
    """The columns that every view of a job reads. The table makes a new array whenever it is asked for one."""

    first_start_s: FloatArray
    run_s: FloatArray
    anchor_s: FloatArray
    wish: IntArray
    restarts: IntArray


@dataclass(frozen=True, eq=False)
class WorldSnapshot:
    """The World at one version. Living jobs are rows; past jobs are in `past`."""

    version: int
    now_s: float
    policy: str
    decisions: DecisionIndex
    keys: dict[JobId, Key]  # of living jobs
    jobs: list[Job]  # by their keys
    placements: list[Placement | None]
    columns: JobColumns
    progress: dict[JobId, Progress]
    checkpoints: dict[JobId, float | None]  # jobs with a checkpoint, and when they saved the last one
    past: list[tuple[Key, PastJob]]
    past_by_id: dict[JobId, PastJob]
    past_counts: Counter[JobState]
    nodes: list[Node]
    healthy: list[int]
    free: list[int]
    cpus_milli: list[int]
    memory_mib: list[int]  # both are what is free on each node
    cordoned: int
    lost: int
    quota: Quota
    flavors: dict[JobId, Flavors]  # by job that has GPUs: the flavor of each resource whose quota it uses
    shown: dict[int, StillView] = field(default_factory=dict)  # by row, as far as they were requested (views.py)
    known: dict[JobId, StillView] = field(default_factory=dict)
    """Views of living jobs that earlier snapshots had; most are still true."""
    forecast_finishes: Callable[[], Mapping[JobId, float]] = dict
    """When living jobs finish by the last forecast; empty without a recent one."""

    @cached_property
    def shown_columns(self) -> ShownColumns:
        return ShownColumns(*(getattr(self.columns, name) for name in ShownColumns._fields))

    @property
    def plan(self) -> Plan | None:
        return self.decisions.plan

    def row_of(self, job: JobId) -> int | None:
        """Return the row of a living job; None for another."""
        key = self.keys.get(job)
        return None if key is None else bisect_left(self.jobs, key, key=key_of)

    @cached_property
    def node_types(self) -> dict[str, str]:
        return {node.name: node.gpu_type for node in self.nodes}

    @cached_property
    def states(self) -> list[JobState]:
        """The state of each living job, as `World.state_of` has it."""
        states = [_STATES[phase] for phase in self.columns.phase.tolist()]
        for row in np.flatnonzero(~np.isnan(self.columns.first_start_s)).tolist():
            if states[row] is JobState.PENDING:
                states[row] = JobState.PREEMPTED
        return states

    @cached_property
    def use(self) -> QuotaUse:
        """Who uses how much of which quota."""
        return measure(self.quota, self._uses())

    @cached_property
    def _waits(self) -> BoolArray:
        return np.isin(self.columns.phase, _WAITS)

    @cached_property
    def is_queued(self) -> BoolArray:
        """By row: whether the job waits for GPUs, and its user wants it to run."""
        return self._waits & ~np.isin(self.columns.wish, _SUSPENDED)

    def _uses(self) -> Iterator[JobUse]:
        waits = self._waits
        suspended = waits & ~self.is_queued
        flavors = self.flavors
        columns = zip(self.jobs, self.placements, waits.tolist(), suspended.tolist(), strict=True)
        for job, placement, is_waiting, is_suspended in columns:
            gpus = 0 if placement is None else placement.units
            yield JobUse(job, gpus, is_waiting, is_suspended, flavors.get(job.id, ()) if gpus else ())

    @cached_property
    def state_counts(self) -> dict[JobState, int]:
        counts = {state: self.past_counts[state] for state in JobState}
        # By identity: to hash a member of an enum takes longer than all the rest.
        for state in _LIVING:
            counts[state] += self.states.count(state)
        return counts


@dataclass(slots=True, eq=False)
class StillView:
    """What the API shows of a living job and does not change with time alone, and what that was made from."""

    job: Job
    placement: Placement | None
    progress: Progress | None
    facts: tuple[Any, ...]  # all else but the decision: equal where it says the same
    decision: Decision | None
    decided: object  # the mark of the last plan that decided so
    text: (
        bytes  # as JSON, without the closing brace; only this: objects of thousands of jobs take several times as much
    )

    def holds(self, job: Job, placement: Placement | None, progress: Progress | None, facts: tuple[Any, ...]) -> bool:
        """Return whether it still shows the job: events replace these values and never change them."""
        is_same = self.job is job and self.placement is placement and self.progress is progress
        return is_same and self.facts == facts

    def decides(self, decisions: DecisionIndex, row: int) -> bool:
        """Return whether the last plan decides as the one did that this was made from."""
        if self.decided is decisions.mark:
            return True
        if self.decision != decisions.on(self.job.id, row):
            return False
        self.decided = decisions.mark
        return True


class SnapshotCache:
    """Keeps a snapshot that shows everything a client can know, and replaces it when it is old."""

    def __init__(
        self, service: Service, cycles: SchedulerCounters, forecast_finishes: Callable[[], Mapping[JobId, float]] = dict
    ) -> None:
        self._service = service
        self._forecast_finishes = forecast_finishes
        self._cycles = cycles
        self._taken = (-1, 0.0)
        self._lock = threading.Lock()
        self._last: WorldSnapshot | None = None
        self._past, self._forgotten = PastJobs(), 0
        self._known: dict[JobId, StillView] = {}
        self._decisions = DecisionIndex(None)
        self._taking: asyncio.Future[WorldSnapshot] | None = None
        with service.reading() as (world, _):
            self._world = world

    async def newest(self) -> WorldSnapshot:
        """Return the current snapshot at once, or take one in another thread: the engine may be deciding.

        Requests that come meanwhile wait for the same one. A thread for each would keep all others from a thread.
        """
        found = self._current()
        if found is not None:
            return found
        if self._taking is None or self._taking.done():
            self._taking = asyncio.ensure_future(anyio.to_thread.run_sync(self.take))
        return await asyncio.shield(self._taking)

    def take(self) -> WorldSnapshot:
        """Return the current snapshot, for a thread that may wait."""
        with self._lock:
            return self._current() or self._take()

    def refresh(self) -> None:
        """Take a snapshot now, before clients learn of a change."""
        with self._lock:
            if not self._is_newest():
                self._take()

    def _take(self) -> WorldSnapshot:
        cycle = self._cycles.count
        with self._service.reading() as (world, plan):
            found = self._copy(world, plan)
        self._last, self._taken = found, (cycle, time.monotonic())
        return found

    def _current(self) -> WorldSnapshot | None:
        is_young = time.monotonic() < self._taken[1] + _MAX_AGE_S
        return self._last if is_young or self._is_newest() else None

    def _is_newest(self) -> bool:
        # A plan that changes nothing leaves the version as it is, and may still have other reasons.
        last = self._last
        return last is not None and last.version == self._world.version and self._taken[0] == self._cycles.count

    def _copy(self, world: World, plan: Plan | None) -> WorldSnapshot:
        past = self._up_to_date(world)
        jobs = world.jobs
        if plan is not self._decisions.plan:
            self._decisions = DecisionIndex(plan)
        if len(self._known) > 2 * jobs.n + _FEW_VIEWS:
            # Most are of jobs that are over.
            self._known = {}
        return WorldSnapshot(
            version=world.version,
            now_s=world.now_s,
            policy=world.policy,
            decisions=self._decisions,
            keys=dict(jobs.key_of),
            jobs=list(jobs.jobs),
            placements=list(jobs.placements),
            columns=jobs.copied(),
            progress=dict(world.progress),
            checkpoints=dict(jobs.checkpoints),
            past=list(past.order),
            past_by_id=past.by_id,
            past_counts=Counter(past.counts),
            nodes=list(world.nodes.nodes),
            healthy=list(world.layout.healthy),
            free=list(world.layout.free),
            cpus_milli=list(world.layout.cpus_milli),
            memory_mib=list(world.layout.memory_mib),
            cordoned=world.cordoned,
            lost=world.lost,
            quota=world.effective_quota,
            flavors=flavors_held(world),
            known=self._known,
            forecast_finishes=self._forecast_finishes,
        )

    def _up_to_date(self, world: World) -> PastJobs:
        """Add the jobs that ended since; begin again when the World has forgotten some."""
        if world.forgotten != self._forgotten:
            self._past, self._forgotten = PastJobs.of(world), world.forgotten
        known = self._past
        new = len(world.past) - len(known.by_id)
        for past in reversed(list(islice(reversed(world.past.values()), new))):
            known.add(past)
        return known
