"""A second policy beside the one that decides: it sees the same World, and touches nothing.

The engine's thread only forks the World, and not even that while the shadow is busy or has to rest: so the
loop keeps its time, and some cycles are not looked at.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import JobId
from batuta.core.plan import Command, Migrate, Plan, Preempt, Resize, Start, Stop
from batuta.core.world import World
from batuta.engine.fence import Fence, FencedThread
from batuta.engine.observers import Observer

_FORK_SHARE = 0.05
"""Of the engine's time that forks may take."""
_DECIDE_SHARE = 0.25
"""Of one core that the shadow's decisions may take."""
_KINDS = {Start: "start", Resize: "resize", Migrate: "migrate", Preempt: "preempt", Stop: "stop"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A job that has other GPUs than the shadow would have given it."""

    job: JobId
    has: int
    would_have: int
    since_s: float


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """What a policy would have done, since it began to watch."""

    policy: str
    since_s: float = 0.0
    cycles: int = 0
    """That it has looked at."""
    skipped: int = 0
    """In which it was busy."""
    agreed: int = 0
    """In which every job would have had as many GPUs as it got."""
    failed: int = 0
    """In which it could not decide."""
    would: dict[str, int] = field(default_factory=dict)
    """Commands that it would have given, by kind; each cycle begins with the World as it really is."""
    did: dict[str, int] = field(default_factory=dict)
    """Commands that were given in the same cycles."""
    differences: tuple[Difference, ...] = ()
    """As of the last cycle that it has looked at, in the order of jobs."""
    trouble: str = ""
    """Why it could not decide, the last time that it could not."""


@dataclass(frozen=True, slots=True)
class _Case:
    world: World
    plan: Plan


class Shadow(Observer):
    """A watcher of the engine. `world` is the engine's own; a fork of it is all that the shadow ever uses."""

    def __init__(
        self,
        world: World,
        rules_of: Callable[[str], SchedulerProfile],
        policy: str = "",
        clock: Callable[[], float] = time.time,
        fence: Fence | None = None,
    ) -> None:
        self._world = world
        self._rules_of = rules_of
        self._fence = fence or Fence()
        self._clock = clock
        self._rules: SchedulerProfile | None = None
        self._report = ShadowReport("")
        self._lock = threading.Lock()
        self._case: _Case | None = None
        self._fork: World | None = None
        self._ready_s = 0.0
        """By the monotonic clock: before that it rests."""
        self._woken = threading.Condition(self._lock)
        self._thread: FencedThread | None = None
        self._closed = False
        if policy:
            self.watch(policy)

    # ------------------------------------------------------------------------------- for people, any thread

    def watch(self, policy: str) -> None:
        """Lets this policy watch from now on; an empty name ends that."""
        rules = replace(self._rules_of(policy), explains=False) if policy else None
        with self._lock:
            self._rules, self._case = rules, None
            self._report = ShadowReport(policy, self._clock())
            if rules is not None and self._thread is None and not self._closed:
                self._thread = self._fence.start("shadow policy", self._run)

    @property
    def report(self) -> ShadowReport:
        with self._lock:
            return self._report

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._woken.notify_all()
        if self._thread is not None:
            self._thread.join(5.0)

    # --------------------------------------------------------------------------------- in the engine's thread

    def deciding(self) -> None:
        self._fork = None
        if self._rules is not None:
            begun_s = time.monotonic()
            if self._case is None and begun_s >= self._ready_s:
                self._fork = self._world.fork()
                took_s = time.monotonic() - begun_s
                self._ready_s = begun_s + took_s / _FORK_SHARE

    def decided(self, world: World, plan: Plan) -> None:
        if self._rules is not None:
            with self._lock:
                if self._fork is not None:
                    self._case = _Case(self._fork, plan)
                    self._woken.notify()
                else:
                    self._report = replace(self._report, skipped=self._report.skipped + 1)
        self._fork = None

    # ------------------------------------------------------------------------------------ in its own thread

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._case is None and not self._closed:
                    self._woken.wait()
                if self._closed:
                    return
                case, rules = self._case, self._rules
            begun_s = time.thread_time()
            if rules is not None and case is not None:
                self._look(case, rules)
            spent_s = time.thread_time() - begun_s
            with self._lock:
                if self._case is case:
                    self._case = None
                self._ready_s = max(self._ready_s, time.monotonic() + spent_s / _DECIDE_SHARE)

    def _look(self, case: _Case, rules: SchedulerProfile) -> None:
        try:
            plan, trouble = decide(case.world, case.plan.time_s, rules), ""
        except Exception as error:
            # Whatever it is, it is the shadow's own trouble.
            plan, trouble = None, f"{error!r}"
        with self._lock:
            if rules is self._rules:
                self._report = _told(self._report, case, plan, trouble)


def _told(report: ShadowReport, case: _Case, plan: Plan | None, trouble: str) -> ShadowReport:
    if plan is None:
        return replace(report, cycles=report.cycles + 1, failed=report.failed + 1, trouble=trouble)
    before = {one.job: one for one in report.differences}
    differences = tuple(_differences(case, plan, before))
    return replace(
        report,
        cycles=report.cycles + 1,
        agreed=report.agreed + (not differences),
        would=_counted(report.would, plan),
        did=_counted(report.did, case.plan),
        differences=differences,
    )


def _counted(counts: dict[str, int], plan: Plan) -> dict[str, int]:
    return dict(Counter(counts) + Counter(_KINDS[type(command)] for command in plan.commands))


def _differences(case: _Case, plan: Plan, before: dict[JobId, Difference]) -> list[Difference]:
    """Jobs that would have another number of GPUs, each since when that is so."""
    real, other = _sizes(case.plan), _sizes(plan)
    jobs, found = case.world.jobs, list[Difference]()
    for job in sorted({*real, *other} & jobs.key_of.keys(), key=jobs.row):
        held = int(jobs.held[jobs.row(job)])
        has, would = real.get(job, held), other.get(job, held)
        if has != would:
            known = before.get(job)
            same = known is not None and (known.has, known.would_have) == (has, would)
            since_s = known.since_s if known is not None and same else case.plan.time_s
            found.append(Difference(job, has, would, since_s))
    return found


def _sizes(plan: Plan) -> dict[JobId, int]:
    """By job: the GPUs that a command gives it, or the replicas of a CPU-only job."""
    return {command.job: _size(command) for command in plan.commands}


def _size(command: Command) -> int:
    return 0 if isinstance(command, Preempt | Stop) else command.placement.units
