"""What looking ahead costs the engine: the wall time of its cycles while somebody asks for all ETAs.

A cluster of many jobs decides after each end of a job. Measured are its cycles while nobody asks, while a
process of its own looks ahead (as a server does it), and, for comparison, while a thread of the same process
does. One core for the engine and one for who looks ahead are needed for the ratio to mean something.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from batuta.backends.sim.forecast.queries import EtaQuery
from batuta.bootstrap.forecast_process import ForecastFailed, ForecastProcess, answer
from batuta.core.apply import apply
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import JobEnded, JobStarted, Planned
from batuta.core.job import JobState
from batuta.core.world import World
from batuta.engine.profile import profile_for
from benchmarks.clusters import Mix, carry_out, make_jobs, make_world
from benchmarks.measure import show, times

JOBS, POLICY, CYCLES = 1_000, "afs-l", 60
BAR = 1.5


def main() -> None:
    sys.setswitchinterval(0.001)  # as a server has it
    rules = profile_for(POLICY)
    world = make_world(make_jobs(JOBS, Mix.ROOMY), JOBS // 5)
    carry_out(world, float(JOBS), rules)
    process = ForecastProcess()
    question = EtaQuery(JOBS + 60.0, POLICY)
    process(make_world(make_jobs(5, Mix.ROOMY), 1), question)  # so that it is there
    alone_ms = _cycles_ms(world.fork(), rules, None)
    beside_ms = _cycles_ms(world.fork(), rules, lambda: process(world.fork(), question))
    within_ms = _cycles_ms(world.fork(), rules, lambda: answer(world.fork(), question))
    process.close()
    rows = [
        (name, *(f"{np.percentile(found, share):.1f}" for share in (50, 90, 99)), ratio)
        for name, found, ratio in (
            ("nobody asks", alone_ms, ""),
            ("a process looks ahead", beside_ms, times(_ratio(beside_ms, alone_ms), BAR)),
            ("a thread looks ahead", within_ms, times(_ratio(within_ms, alone_ms))),
        )
    ]
    show(f"{JOBS:,} jobs, {CYCLES} cycles of {POLICY}", ("", "P50 ms", "P90 ms", "P99 ms", "P50 ratio"), rows)


def _ratio(over: np.ndarray, under: np.ndarray) -> float:
    return float(np.median(over) / np.median(under))


def _cycles_ms(world: World, rules: SchedulerProfile, ask: Callable[[], object] | None) -> np.ndarray:
    """Wall time of each cycle, while `ask` goes on again and again in another thread."""
    over = threading.Event()

    def keep_asking() -> None:
        with suppress(ForecastFailed):  # it is ended at the end
            while ask is not None and not over.is_set():
                ask()

    thread = threading.Thread(target=keep_asking, daemon=True)
    thread.start()
    found, now_s = [], world.now_s + 1000.0
    for _ in range(CYCLES):
        now_s += 1.0
        running = next(job for job, held in zip(world.jobs.ids, world.jobs.placements, strict=True) if held is not None)
        apply(world, JobEnded(now_s, running, JobState.SUCCEEDED))
        begun = time.perf_counter()
        plan = decide(world, now_s, rules)
        found.append((time.perf_counter() - begun) * 1e3)
        if not plan.empty:
            apply(world, Planned(now_s, plan))
            for command in plan.commands:
                apply(world, JobStarted(now_s, command.job))
        time.sleep(0.005)
    over.set()
    return np.array(found)


if __name__ == "__main__":
    main()
