"""A second policy beside the one that decides: it sees the same World, and touches nothing.

The engine's thread only forks the World, unless the shadow is busy or has to rest: some cycles are skipped.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from batuta.core.decide import SchedulerProfile, decide
from batuta.core.job import JobId
from batuta.core.plan import Migrate, Plan, Preempt, Resize, Start, Stop
from batuta.core.world import World
from batuta.engine.fence import Fence, FencedThread
from batuta.engine.observers import Observer

_FORK_SHARE = 0.05  # of the engine's time that forks may take
_DECIDE_SHARE = 0.25  # of one core that the shadow's decisions may take
_KINDS = {kind: kind.__name__.lower() for kind in (Start, Resize, Migrate, Preempt, Stop)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A job that has other GPUs than the shadow would have given it."""

    job: JobId
    has: int
    would_have: int
    since_s: float


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """What a policy would have done, since it began to watch.

    It agreed in cycles in which every job would have had as many GPUs as it got, and skipped those while busy.
    """

    policy: str
    since_s: float = 0.0
    cycles: int = 0
    skipped: int = 0
    agreed: int = 0
    failed: int = 0
    would: dict[str, int] = field(default_factory=dict)  # commands by kind; each cycle begins with the real World
    did: dict[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()  # as of the last cycle that it has looked at, in the order of jobs
    trouble: str = ""  # why it could not decide, the last time that it could not


class _Case(NamedTuple):
    """A World, and what was decided in it."""

    world: World
    plan: Plan


class Shadow(Observer):
    """An observer of the engine. `world` is the engine's own; the shadow decides on forks of it."""

    def __init__(
        self,
        world: World,
        rules_of: Callable[[str], SchedulerProfile],
        policy: str = "",
        clock: Callable[[], float] = time.time,
        fence: Fence | None = None,
    ) -> None:
        self._world, self._rules_of = world, rules_of
        self._fence, self._clock = fence or Fence(), clock
        self._rules: SchedulerProfile | None = None
        self._report = ShadowReport("")
        self._lock = threading.Lock()
        self._case: _Case | None = None
        self._fork: World | None = None
        self._ready_s = 0.0  # by the monotonic clock: before that it rests
        self._woken = threading.Condition(self._lock)
        self._thread: FencedThread | None = None
        self._closed = False
        if policy:
            self.watch(policy)

    def watch(self, policy: str) -> None:
        """Let this policy watch from now on; an empty name ends that. For any thread."""
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

    def deciding(self) -> None:
        self._fork, begun_s = None, time.monotonic()
        if self._rules is not None and self._case is None and begun_s >= self._ready_s:
            self._fork = self._world.fork()
            self._ready_s = begun_s + (time.monotonic() - begun_s) / _FORK_SHARE

    def decided(self, world: World, plan: Plan) -> None:
        if self._rules is not None:
            with self._lock:
                if self._fork is not None:
                    self._case = _Case(self._fork, plan)
                    self._woken.notify()
                else:
                    self._report = replace(self._report, skipped=self._report.skipped + 1)
        self._fork = None

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
    differences = tuple(_differences(case, plan, {one.job: one for one in report.differences}))
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
            is_same = known is not None and (known.has, known.would_have) == (has, would)
            found.append(known if known and is_same else Difference(job, has, would, case.plan.time_s))
    return found


def _sizes(plan: Plan) -> dict[JobId, int]:
    """By job: the GPUs that a command gives it, or the replicas of a CPU-only job."""
    return {one.job: 0 if isinstance(one, Preempt | Stop) else one.placement.units for one in plan.commands}
