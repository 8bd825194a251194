"""How good the answers of `batuta eta` are: asked at random moments of Pollux replays, held against the end.

The replay is the goodput model's (16 × 4 T4, rounds of 60 s, restarts of 30 s), in which the scheduler knows
what jobs of the same application did before, and no totals. At random moments the World is forked and asked
when each job that is alive finishes: once if nothing else arrives, once if jobs keep coming as they did
lately. Errors are relative to the time that really was left. Bars: the P50 is within ±20 % for half of the
jobs, the P90 is met by 85 to 95 %.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from batuta.backends.sim.experiment import Experiment
from batuta.backends.sim.foresight.arrivals import draw_arrivals, recent_arrivals
from batuta.backends.sim.foresight.effort import Effort
from batuta.backends.sim.foresight.forecast import Rulebook, Scene, futures_of, known_of, summarise
from batuta.backends.sim.foresight.fork import Outside
from batuta.backends.sim.foresight.lengths import Draws, believed_left_s
from batuta.bootstrap import rules_for, run_experiment
from batuta.core.job import JobId
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.prediction.duration import Quantiles
from batuta.prediction.duration_history import spent_s
from batuta.prediction.duration_progress import reported
from benchmarks.measure import cpu_s, shared_data, show

POLICY = os.environ.get("BATUTA_ETA_POLICY", "rent")
LOAD = os.environ.get("BATUTA_ETA_LOAD", "1.0")
WORKLOADS = tuple(map(int, os.environ.get("BATUTA_ETA_WORKLOADS", "1,2").split(",")))
MOMENTS = int(os.environ.get("BATUTA_ETA_MOMENTS", "6"))
EFFORT = Effort(runs=12, precision=0.03)
AHEAD_S = 12 * 3600.0
ROUND_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer, and what was true."""

    left_s: float
    p50_s: float
    p90_s: float


def main() -> None:
    rows = []
    for number in WORKLOADS:
        path = shared_data() / "pollux" / "workloads" / f"load-{LOAD}" / f"workload-{number}.csv"
        forks, end_s = _lived(str(path), seed=number)
        for arriving in (False, True):
            found: list[Asked] = []
            spent_s = cpu_s(partial(_collect, found, forks, end_s, arriving))
            rows.append((f"workload-{number}", "as lately" if arriving else "none", *_scored(found, spent_s)))
    show(
        f"{POLICY}, load {LOAD}, {MOMENTS} moments each, {EFFORT.runs} runs",
        ("workload", "arrivals", "answers", "P50 within 20 %", "median P50/true", "P90 met", "CPU s each"),
        rows,
    )


def _lived(path: str, seed: int) -> tuple[list[World], dict[JobId, float]]:
    """Forks of the World at random moments of a replay, and when each job ended."""
    chance, forks, cycles = np.random.default_rng(seed), list[World](), [0]
    wanted: set[int] = set()

    def watch(world: World, plan: Plan) -> None:
        cycles[0] += 1
        if cycles[0] in wanted:
            forks.append(world.fork())

    experiment = Experiment(POLICY, path, "16x4:T4", round_s=ROUND_S, restart_s=30.0, keep_segments=False)
    # How many cycles there are is known after a run; the same run again is the same.
    count = len(run_experiment(experiment).decide_ms)
    wanted.update((chance.uniform(0.08, 0.9, MOMENTS) * count).astype(int).tolist())
    run = run_experiment(experiment, watch=watch)
    return forks, {job.id: job.end_s for job in run.jobs}


def _ask_all(forks: list[World], end_s: dict[JobId, float], arriving: bool) -> list[Asked]:
    book = Rulebook(lambda: rules_for(POLICY, freeze=False), Cadence(round_s=ROUND_S))
    found = []
    for number, world in enumerate(forks):
        draws = Draws(EFFORT.runs, seed=number)
        scene = Scene(world, world.now_s, known_of(world, world.now_s, _lengths), draws, EFFORT)
        if arriving:
            scene = Scene(world, world.now_s, scene.known, draws, EFFORT, outside=_arrivals(world, draws))
        for one in summarise(scene, futures_of(scene, book)).jobs:
            now_s = world.now_s
            found.append(Asked(end_s[one.job] - now_s, one.finish_p50_s - now_s, one.finish_p90_s - now_s))
    return found


def _collect(found: list[Asked], forks: list[World], end_s: dict[JobId, float], arriving: bool) -> None:
    found += _ask_all(forks, end_s, arriving)


def _lengths(world: World, job: JobId) -> Quantiles:
    """What the goodput model reports is time left; its share of the whole follows from what was done."""
    left_s = believed_left_s(world, world.jobs.row(job))
    done_s = spent_s(world, job)
    return reported(left_s, done_s / max(done_s + left_s, 1.0))


def _arrivals(world: World, draws: Draws) -> Callable[[int], Outside]:
    recent = recent_arrivals(world, world.now_s)

    def outside(run: int) -> Outside:
        if recent is None:
            return Outside()
        return Outside(draw_arrivals(recent, draws, run, world.now_s, AHEAD_S))

    return outside


def _scored(found: list[Asked], spent_s: float) -> tuple[str, ...]:
    true = np.array([one.left_s for one in found])
    p50, p90 = np.array([one.p50_s for one in found]), np.array([one.p90_s for one in found])
    within, met = float((abs(p50 / true - 1) <= 0.2).mean()), float((true <= p90).mean())
    return (
        str(len(found)),
        f"{within:.0%}{'' if within >= 0.5 else ' !'}",
        f"{float(np.median(p50 / true)):.2f}",
        f"{met:.0%}{'' if 0.85 <= met <= 0.95 else ' !'}",
        f"{spent_s / MOMENTS:.1f}",
    )


if __name__ == "__main__":
    main()
