"""What quota costs: the step `admit` for jobs of 500 queues in 50 cohorts, and its part of a whole cycle.

Waiting: 10,000 jobs wait and nothing runs. Contended: what quota allows runs, four times as many jobs as can
run wait, and some of them may push others aside. Bars: ten times the jobs, queues and cohorts cost no more
than n log n does; below 30 % of a cycle.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, replace

from batuta.bootstrap import rules_for
from batuta.core.admission import OpenDoor
from batuta.core.apply import apply
from batuta.core.decide import Rules, decide
from batuta.core.event import QuotaSet
from batuta.core.job import Job
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
from batuta.core.world import World
from benchmarks.clusters import GPUS_PER_NODE, Mix, carry_out, make_jobs, make_world
from benchmarks.measure import cpu_s, no_collection, show, times

SCALES = ((1_000, 50, 5), (10_000, 500, 50))
"""Jobs, queues, cohorts."""
SHARE_BAR = 0.3
POLICY = "elastic-fifo"


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the step, of the whole cycle, and of the cycle without quota."""

    admit_s: float
    cycle_s: float
    open_s: float


def main() -> None:
    rules = rules_for(POLICY)
    rows = []
    for name, ready in (("waiting", waiting), ("contended", contended)):
        small, large = (measure(*ready(*scale, rules), rules) for scale in SCALES)
        (few, *_), (many, queues, cohorts) = SCALES
        bar = many * math.log(many) / (few * math.log(few))
        rows.append(
            (
                name,
                f"{small.admit_s * 1e3:.1f}",
                f"{large.admit_s * 1e3:.0f}",
                times(large.admit_s / small.admit_s, bar),
                f"{large.cycle_s * 1e3:.0f}",
                times(large.admit_s / large.cycle_s, SHARE_BAR),
                f"{large.open_s * 1e3:.0f}",
            )
        )
    columns = ("", f"admit, {few:,} (ms)", f"admit, {many:,} (ms)", f"growth (bar {bar:.1f} ×)")
    more = ("cycle (ms)", "admit/cycle", "cycle without quota (ms)")
    show(f"{many:,} jobs of {queues} queues in {cohorts} cohorts, {POLICY}", columns + more, rows)


def waiting(jobs: int, queues: int, cohorts: int, rules: Rules) -> tuple[World, float]:
    """All jobs wait; quota for as many GPUs as there are."""
    nodes = jobs // 5
    world = make_world(_in_queues(make_jobs(jobs, Mix.CROWDED), queues), nodes)
    apply(world, QuotaSet(float(jobs), make_quota(queues, cohorts, nodes * GPUS_PER_NODE)))
    return world, float(jobs)


def contended(jobs: int, queues: int, cohorts: int, rules: Rules) -> tuple[World, float]:
    """The cluster is full, and as many as in `waiting` still wait."""
    nodes = jobs // 10
    made = [
        replace(job, priority=k % 3)
        for k, job in enumerate(_in_queues(make_jobs(jobs * 5 // 4, Mix.CROWDED), queues))
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
            ClusterQueue(name, f"c{k % cohorts:02d}", (group,), preemption=rules)
            for k, name in enumerate(names)
        ),
        local_queues=tuple(LocalQueue(name, name) for name in names),
    )


def _in_queues(jobs: list[Job], queues: int) -> list[Job]:
    return [replace(job, queue=f"q{k * 7919 % queues:03d}") for k, job in enumerate(jobs)]


def measure(world: World, now_s: float, rules: Rules, repeat: int = 5) -> Cost:
    decide(world, now_s, rules)
    admits, cycles = list[float](), list[float]()
    for _ in range(repeat):
        with no_collection():
            begun_s = last_s = time.process_time()
            spent_s = 0.0

            def after_step(step: str) -> None:
                nonlocal last_s, spent_s
                now = time.process_time()
                if step == "admit":
                    spent_s += now - last_s
                last_s = now

            decide(world, now_s, rules, after_step)
            cycles.append(time.process_time() - begun_s)
            admits.append(spent_s)
    free = replace(rules, admission=OpenDoor())
    without = [cpu_s(lambda: decide(world, now_s, free)) for _ in range(repeat)]
    return Cost(statistics.median(admits), statistics.median(cycles), statistics.median(without))


if __name__ == "__main__":
    main()
