"""How good the answers of `batuta eta` are: asked again and again in Pollux replays, held against the end.

The replay is the goodput model's (16 × 4 T4, rounds of 60 s, restarts of 30 s), in which the scheduler knows
what jobs of the same application did before, and no totals. From time to time the World is forked and asked
when each job that is alive finishes: if nobody else came; if jobs keep coming as they did lately; and as a
server tells it, which is the same, corrected by what came of its earlier answers in this run. Errors are
relative to the time that really was left. Bars: the P50 is within ±20 % for half of the jobs, the P90 is met
by 85 to 95 %. Who lives long is asked about often: as a job each counts once, by the share of its answers.
BATUTA_ETA_LOADS, BATUTA_ETA_WORKLOADS and BATUTA_ETA_EVERY_S choose what is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.forecast.calibration import ForecastCalibrator
from batuta.backends.sim.forecast.forecast import (
    Forecast,
    ForecastInput,
    ProfileSource,
    projections_of,
    summarise,
)
from batuta.backends.sim.forecast.projection import NO_EVENTS, ExternalEvents, fork_at
from batuta.backends.sim.forecast.sampling import (
    Effort,
    Sampler,
    believed_left_s,
    draw_arrivals,
    recent_arrivals,
)
from batuta.core.job import JobId, JobState
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from batuta.prediction.duration import LEAST_S, UNKNOWN_SD, Quantiles, remaining_by_report, spent_s
from benchmarks.measure import cpu_s, shared_data, show

POLICY = os.environ.get("BATUTA_ETA_POLICY", "rent")
LOADS = os.environ.get("BATUTA_ETA_LOADS", "1.0").split(",")
WORKLOADS = os.environ.get("BATUTA_ETA_WORKLOADS", "1,2,3,4").split(",")
EVERY_S = float(os.environ.get("BATUTA_ETA_EVERY_S", "2400"))
EFFORT = Effort(runs=8, precision=0.03)
AHEAD_S = 12 * 3600.0
ROUND_S = 60.0
COLUMNS = (
    "load, workload",
    "assumes",
    "jobs",
    "P50 within 20 %",
    "P90 met",
    "answers",
    "P50 within 20 %",
    "median P50/true",
    "P90 met",
    "CPU s each",
)


@dataclass(slots=True)
class Answers:
    """What was told of the time left, and what was true."""

    jobs: list[str] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)
    p50_s: list[float] = field(default_factory=list)
    p90_s: list[float] = field(default_factory=list)

    def add(self, told: Forecast, end_s: dict[JobId, float], run: str) -> None:
        for one in told.jobs:
            self.jobs.append(f"{run} {one.job}")
            self.left_s.append(end_s[one.job] - told.now_s)
            self.p50_s.append(one.finish_p50_s - told.now_s)
            self.p90_s.append(one.finish_p90_s - told.now_s)

    def extend(self, others: Answers) -> None:
        self.jobs += others.jobs
        self.left_s += others.left_s
        self.p50_s += others.p50_s
        self.p90_s += others.p90_s

    def scored(self) -> tuple[str, ...]:
        true, p50, p90 = (np.array(own) for own in (self.left_s, self.p50_s, self.p90_s))
        within, met = abs(p50 / true - 1) <= 0.2, true <= p90
        _, job = np.unique(self.jobs, return_inverse=True)
        each = np.bincount(job)
        of_jobs = [float((np.bincount(job, own) / each).mean()) for own in (within, met)]
        return (
            *(str(len(each)), _within(of_jobs[0]), _met(of_jobs[1])),
            *(
                str(len(true)),
                f"{within.mean():.0%}",
                f"{float(np.median(p50 / true)):.2f}",
                f"{met.mean():.0%}",
            ),
        )


def _within(share: float) -> str:
    return f"{share:.0%}{'' if share >= 0.5 else ' !'}"


def _met(share: float) -> str:
    return f"{share:.0%}{'' if 0.85 <= share <= 0.95 else ' !'}"


def main() -> None:
    rows: list[tuple[str, ...]] = []
    pooled: dict[str, Answers] = {}
    for load in LOADS:
        for number in WORKLOADS:
            path = shared_data() / "pollux" / "workloads" / f"load-{load}" / f"workload-{number}.csv"
            forks, end_s = _lived(str(path))
            for ask in (_ask_alone, _ask_corrected):
                found: dict[str, Answers] = {}
                each_s = cpu_s(partial(ask, forks, end_s, f"{load} {number}", found)) / max(len(forks), 1)
                for name, answers in found.items():
                    pooled.setdefault(name, Answers()).extend(answers)
                    rows.append((f"{load}, {number}", name, *answers.scored(), f"{each_s:.1f}"))
    rows += [("all", name, *answers.scored(), "") for name, answers in pooled.items()]
    show(f"{POLICY}, asked every {EVERY_S / 60:.0f} min, {EFFORT.runs} runs each", COLUMNS, rows)


def _lived(path: str) -> tuple[list[World], dict[JobId, float]]:
    """Forks of the World in the course of a replay, and when each job ended."""
    forks, next_s = list[World](), [EVERY_S]

    def watch(world: World, plan: Plan) -> None:
        if world.now_s >= next_s[0] and world.jobs.n:
            forks.append(world.fork())
            next_s[0] = world.now_s + EVERY_S

    experiment = Experiment(POLICY, path, "16x4:T4", round_s=ROUND_S, restart_s=30.0, keep_segments=False)
    run = run_experiment(experiment, watch=watch)
    return forks, {job.id: job.end_s for job in run.jobs}


def _ask_alone(forks: Sequence[World], end_s: dict[JobId, float], run: str, found: dict[str, Answers]) -> None:
    alone = found["nobody comes"] = Answers()
    for seed, world in enumerate(forks):
        alone.add(_forecast(world, seed, lambda world, draws, run: NO_EVENTS), end_s, run)


def _ask_corrected(forks: Sequence[World], end_s: dict[JobId, float], run: str, found: dict[str, Answers]) -> None:
    raw = found["as lately"] = Answers()
    told = found["as lately, corrected"] = Answers()
    hindsight = ForecastCalibrator()
    for seed, world in enumerate(forks):
        forecast = _forecast(world, seed, _as_lately)
        raw.add(forecast, end_s, run)
        hindsight.learn(world.past, world.jobs.ids, world.now_s)
        told.add(hindsight.calibrate(forecast), end_s, run)


def _forecast(world: World, seed: int, external: Callable[[World, Sampler, int], ExternalEvents]) -> Forecast:
    book = ProfileSource(lambda: profile_for(POLICY, freeze=False), Cadence(round_s=ROUND_S))
    draws = Sampler(EFFORT.runs, seed=seed)
    then, seen = fork_at(world, world.now_s), _seen(world)
    known = {job: _lengths(seen, then, job) for job in then.jobs.ids}
    inputs = ForecastInput(world, world.now_s, known, draws, EFFORT, external=partial(external, world, draws))
    return summarise(inputs, projections_of(inputs, book))


def _as_lately(world: World, draws: Sampler, run: int) -> ExternalEvents:
    recent = recent_arrivals(world, world.now_s)
    if recent is None:
        return NO_EVENTS
    return ExternalEvents(draw_arrivals(recent, draws, run, world.now_s, AHEAD_S))


def _seen(world: World) -> frozenset[str]:
    """The applications of which a job has come to its end."""
    over = (past for past in world.past.values() if past.state is JobState.SUCCEEDED)
    return frozenset(past.job.application for past in over)


def _lengths(seen: frozenset[str], world: World, job: JobId) -> Quantiles:
    """What the goodput model reports is time left; its share of the whole follows from what was done.

    Before a job of its application has come to its end, that is twice what was seen of it: a guess, and no
    more to be believed than any other about a job of which nobody knows anything.
    """
    row = world.jobs.row(job)
    left_s, done_s = believed_left_s(world, row), spent_s(world, job)
    if world.jobs.jobs[row].application not in seen:
        return Quantiles.around(max(left_s, LEAST_S), UNKNOWN_SD)
    return remaining_by_report(left_s, done_s / max(done_s + left_s, 1.0))


if __name__ == "__main__":
    main()
