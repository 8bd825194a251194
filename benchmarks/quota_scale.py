"""What quota costs: the step `admit` for jobs of 500 queues in 50 cohorts, and its part of a whole cycle.

Waiting: 10,000 jobs wait and nothing runs. Contended: what quota allows runs, four times as many jobs as can
run wait, and some of them may push others aside. Each is measured twice: for the first time, when nothing is
known of any job, and as a cycle among others, after one job has ended and a second has passed. Bars: ten
times the jobs, queues and cohorts cost no more than n log n does; below 30 % of a cycle. Within the step the
policy divides what queues cannot give to all of their jobs: that part is also shown by itself.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from batuta.core.admission import AdmitAll
from batuta.core.apply import apply
from batuta.core.arrays import IntArray, Partitions
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import JobEnded, QuotaSet, TimePassed
from batuta.core.job import Job, JobState
from batuta.core.policy import Policy, as_parted
from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    Flavor,
    FlavorQuota,
    Limits,
    LocalQueue,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Within,
)
from batuta.core.view import PoolView
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.quota.admission import QuotaAdmission
from benchmarks.clusters import GPUS_PER_NODE, Mix, carry_out, make_jobs, make_world
from benchmarks.measure import cpu_s, no_collection, show, times

SCALES = ((1_000, 50, 5), (10_000, 500, 50))
"""Jobs, queues, cohorts."""
SHARE_BAR = 0.3
POLICY = "elastic-fifo"
PATIENCE_S = QuotaAdmission().patience_s


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the step, of the policy within it, of the cycle, and of the cycle without quota."""

    admit_s: float
    policy_s: float
    cycle_s: float
    open_s: float


def main() -> None:
    rules = profile_for(POLICY)
    rows = []
    for name, ready, before in (
        ("waiting, for the first time", waiting, forget),
        ("waiting, one job ended since", waiting, end_one),
        ("contended, for the first time", contended, forget),
        ("contended, one job ended since", contended, end_one),
    ):
        small, large = (measure(*ready(*scale, rules), rules, before) for scale in SCALES)
        (few, *_), (many, queues, cohorts) = SCALES
        bar = many * math.log(many) / (few * math.log(few))
        rows.append(
            (
                name,
                f"{small.admit_s * 1e3:.1f}",
                f"{large.admit_s * 1e3:.0f}",
                f"{large.policy_s * 1e3:.0f}",
                times(large.admit_s / small.admit_s, bar),
                f"{large.cycle_s * 1e3:.0f}",
                times(large.admit_s / large.cycle_s, SHARE_BAR),
                f"{large.open_s * 1e3:.0f}",
            )
        )
    columns = ("", f"admit, {few:,} (ms)", f"admit, {many:,} (ms)", "policy in it (ms)")
    more = (f"growth (bar {bar:.1f} ×)", "cycle (ms)", "admit/cycle", "cycle without quota (ms)")
    show(f"{many:,} jobs of {queues} queues in {cohorts} cohorts, {POLICY}", columns + more, rows)


def waiting(jobs: int, queues: int, cohorts: int, rules: SchedulerProfile) -> tuple[World, float]:
    """All jobs wait, for more than ten minutes already; quota for as many GPUs as there are."""
    nodes = jobs // 5
    world = make_world(_in_queues(make_jobs(jobs, Mix.CROWDED), queues), nodes)
    apply(world, QuotaSet(float(jobs), make_quota(queues, cohorts, nodes * GPUS_PER_NODE)))
    # One comes each second. At any scale all of them have lost their patience, so that sizes compare alike.
    return world, float(jobs) + PATIENCE_S


def contended(jobs: int, queues: int, cohorts: int, rules: SchedulerProfile) -> tuple[World, float]:
    """The cluster is full, and as many as in `waiting` still wait."""
    nodes = jobs // 10
    made = [
        replace(job, priority=k % 3) for k, job in enumerate(_in_queues(make_jobs(jobs * 5 // 4, Mix.CROWDED), queues))
    ]
    world = make_world(made, nodes)
    apply(world, QuotaSet(float(jobs), make_quota(queues, cohorts, nodes * GPUS_PER_NODE)))
    carry_out(world, float(2 * jobs), rules)
    return world, 2.0 * jobs + 60.0


def make_quota(queues: int, cohorts: int, gpus: int) -> Quota:
    """Each queue has its part of the GPUs, lends all of it, and takes it back when it needs it."""
    rules = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)
    group = ResourceGroup(("nvidia.com/gpu",), (FlavorQuota("gpu", (Limits(gpus * MILLI // queues),)),))
    names = [f"q{k:03d}" for k in range(queues)]
    return Quota(
        flavors=(Flavor("gpu"),),
        cluster_queues=tuple(
            ClusterQueue(name, f"c{k % cohorts:02d}", (group,), preemption=rules) for k, name in enumerate(names)
        ),
        local_queues=tuple(LocalQueue(name, name) for name in names),
    )


def _in_queues(jobs: list[Job], queues: int) -> list[Job]:
    return [replace(job, queue=f"q{k * 7919 % queues:03d}") for k, job in enumerate(jobs)]


class Timed:
    """A policy, and the CPU seconds that it took."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.name, self.traits, self.spent_s = policy, policy.name, policy.traits, 0.0

    def allocate(self, view: PoolView) -> IntArray:
        return self._timed(partial(self._policy.allocate, view))

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray:
        parted = as_parted(self._policy)
        assert parted is not None
        return self._timed(partial(parted.allocate_parts, view, parts))

    def _timed(self, ask: Callable[[], IntArray]) -> IntArray:
        begun_s = time.process_time()
        found = ask()
        self.spent_s += time.process_time() - begun_s
        return found


Before = Callable[[World, float, SchedulerProfile, int], tuple[float, SchedulerProfile]]
"""What comes before a cycle: the time of the cycle, and the rules by which it is decided."""


def forget(world: World, now_s: float, rules: SchedulerProfile, number: int) -> tuple[float, SchedulerProfile]:
    """Nothing is known from earlier cycles."""
    return now_s, replace(rules, admission=QuotaAdmission())


def end_one(world: World, now_s: float, rules: SchedulerProfile, number: int) -> tuple[float, SchedulerProfile]:
    """A job ends, and a second passes. Where jobs run one of them does, and the last plan is carried out."""
    rows = np.flatnonzero(world.jobs.held)
    if rows.size:
        carry_out(world, now_s, rules)
    else:
        rows = np.arange(world.jobs.n)
    apply(world, JobEnded(now_s, world.jobs.ids[rows[number * 31]], JobState.SUCCEEDED))
    apply(world, TimePassed(now_s + 1.0))
    return now_s + 1.0, rules


def measure(world: World, now_s: float, rules: SchedulerProfile, before: Before, repeat: int = 7) -> Cost:
    policy = Timed(rules.policy)
    rules = replace(rules, policy=policy)
    decide(world, now_s, rules)
    admits, asked, cycles, without = list[float](), list[float](), list[float](), list[float]()
    for number in range(repeat):
        now_s, timed = before(world, now_s, rules, number)
        with no_collection():
            begun_s = last_s = time.process_time()
            spent_s = policy_s = policy.spent_s = 0.0

            def after_step(step: str) -> None:
                nonlocal last_s, spent_s, policy_s
                now = time.process_time()
                if step == "admit":
                    spent_s += now - last_s
                    policy_s += policy.spent_s
                last_s, policy.spent_s = now, 0.0

            decide(world, now_s, timed, after_step)
            cycles.append(time.process_time() - begun_s)
            admits.append(spent_s)
            asked.append(policy_s)
        free = replace(rules, admission=AdmitAll())
        without.append(cpu_s(partial(decide, world, now_s, free)))
    return Cost(*map(statistics.median, (admits, asked, cycles, without)))


if __name__ == "__main__":
    main()
