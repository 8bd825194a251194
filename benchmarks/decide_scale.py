"""One full cycle and one after a single change, for every policy, at 1,000 and at 10,000 jobs.

Full: all jobs wait, nothing runs. One change: everybody runs that will, then one job ends. Bars: ten
times the jobs and nodes cost at most 15 times as much; a full cycle at 10,000 jobs takes less than a
second; a cycle after one change at most a tenth of a full one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial

from batuta.core.apply import apply
from batuta.core.decide import STEPS, SchedulerProfile, decide
from batuta.core.event import JobEnded
from batuta.core.job import JobState
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.policies.registry import policy_names
from benchmarks.clusters import GPUS_PER_NODE, Mix, carry_out, make_jobs, make_world
from benchmarks.measure import in_turns_cpu_s, no_collection, ratio_of, show, times

SCALES = ((1_000, 200), (10_000, 2_000))
"""Jobs and nodes."""
GROWTH_BAR, FULL_BAR_S, CHANGE_BAR = 15.0, 1.0, 0.1


Case = tuple[World, float]
"""A World, and when to decide on it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one policy at the two scales; measurements with the same number were made in turns."""

    full_s: tuple[list[float], list[float]]
    change_s: tuple[list[float], list[float]]
    full_steps_s: dict[str, float]
    change_steps_s: dict[str, float]


def one_change(world: World, now_s: float, rules: SchedulerProfile) -> Case:
    """Everybody who will starts; a minute later the job in the middle of those that run ends."""
    carry_out(world, now_s, rules)
    running = [job for job, gpus in zip(world.jobs.ids, world.jobs.held.tolist(), strict=True) if gpus]
    apply(world, JobEnded(now_s + 60, running[len(running) // 2], JobState.SUCCEEDED))
    return world, now_s + 60


def measure(policy: str, small: Case, large: Case) -> Cost:
    """`decide` changes nothing, so it can be asked again and again."""
    rules = profile_for(policy)
    changed = [one_change(world.fork(), now_s, rules) for world, now_s in (small, large)]
    cases = [small, large, *changed]
    spent = in_turns_cpu_s([partial(decide, world, now_s, rules) for world, now_s in cases])
    return Cost(
        (spent[0], spent[1]),
        (spent[2], spent[3]),
        steps_s(large, rules),
        steps_s(changed[1], rules),
    )


def steps_s(case: Case, rules: SchedulerProfile, repeat: int = 3) -> dict[str, float]:
    by_step: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(repeat):
        with no_collection():
            last_s = time.process_time()

            def after_step(step: str) -> None:
                nonlocal last_s
                now = time.process_time()
                by_step[step].append(now - last_s)
                last_s = now

            decide(*case, rules, after_step)
    return {step: statistics.median(spent) for step, spent in by_step.items()}


def main() -> None:
    for mix in Mix:
        fresh = [(make_world(make_jobs(jobs, mix), nodes), float(jobs)) for jobs, nodes in SCALES]
        _show(mix, {policy: measure(policy, fresh[0], fresh[1]) for policy in policy_names()})


def _show(mix: Mix, costs: dict[str, Cost]) -> None:
    (small, _), (large, nodes) = SCALES
    rows = []
    for policy, cost in costs.items():
        full_s = [statistics.median(spent) for spent in cost.full_s]
        change_s = [statistics.median(spent) for spent in cost.change_s]
        rows.append(
            (
                policy,
                f"{full_s[0] * 1e3:.1f}",
                f"{full_s[1] * 1e3:.0f}{'' if full_s[1] < FULL_BAR_S else ' !'}",
                times(ratio_of(cost.full_s[1], cost.full_s[0]), GROWTH_BAR),
                f"{change_s[0] * 1e3:.2f}",
                f"{change_s[1] * 1e3:.2f}",
                times(ratio_of(cost.change_s[1], cost.full_s[1]), CHANGE_BAR),
            )
        )
    columns = (
        "policy",
        f"full, {small:,} (ms)",
        f"full, {large:,} (ms)",
        "growth",
        f"change, {small:,} (ms)",
        f"change, {large:,} (ms)",
        "change/full",
    )
    show(f"{mix.value}: {large:,} jobs on {nodes:,} nodes × {GPUS_PER_NODE} GPUs", columns, rows)
    steps = [
        (
            policy,
            *(f"{cost.full_steps_s[step] * 1e3:.1f}" for step in STEPS),
            *(f"{cost.change_steps_s[step] * 1e3:.2f}" for step in STEPS),
        )
        for policy, cost in costs.items()
    ]
    names = ("policy", *STEPS, *(f"1: {step}" for step in STEPS))
    show(f"{mix.value}: milliseconds by step at {large:,} jobs; `1:` after one change", names, steps)


if __name__ == "__main__":
    main()
