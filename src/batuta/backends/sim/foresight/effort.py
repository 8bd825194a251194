"""How many futures are looked at, and how closely: so that the answer comes in time for any number of jobs.

The effort is planned by counting jobs, not by a clock: so the same question is answered the same on a slow
machine, only later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from batuta.core.world import World

MOST_RUNS, FEWEST_RUNS = 32, 4
BUDGET_S = 6.0
"""CPU seconds of a usual core that an answer may take, as far as they can be told before."""
BRAKE_S = 30.0
"""CPU seconds after which what there is has to do, whoever decides so slowly."""
_JOB_S, _MEETING_S = 1.1e-3, 2.5e-6
"""For the life of a job in one run, and for each other one that it meets."""
_COARSE_JOB_S = 0.35e-3
_FINE, _COARSEST = 0.01, 0.05
_HORIZONS = 4.0


@dataclass(frozen=True, slots=True)
class Effort:
    """What is simulated."""

    runs: int = MOST_RUNS
    precision: float = 0.0
    """At most one change of plan in this part of the time ahead; 0: decide after every event."""
    horizon_s: float = math.inf
    """How far ahead it is looked; whoever is not done by then is "later"."""


def plan_effort(world: World, jobs: int, budget_s: float = BUDGET_S, *, worlds: int = 1) -> Effort:
    """As many runs as the budget allows for, each as fine as it allows for; `worlds` share the budget.

    Where it allows for hardly any, there is one, and each job's own uncertainty is laid over it.
    """
    own_s = budget_s / worlds
    runs = int(own_s / (_JOB_S + _MEETING_S * jobs) / max(jobs, 1))
    if runs >= FEWEST_RUNS:
        return Effort(min(runs, MOST_RUNS))
    horizon_s = _HORIZONS * span_estimate_s(world)
    for precision in (_FINE, 2 * _FINE, _COARSEST):
        runs = int(own_s / (_COARSE_JOB_S * (1.0 + 2 * _FINE / precision)) / jobs)
        if runs >= FEWEST_RUNS:
            return Effort(runs, precision, horizon_s)
    return Effort(1, _COARSEST, horizon_s)


def span_estimate_s(world: World) -> float:
    """About how long the cluster is busy with what is there: all work on all GPUs, or the longest job."""
    jobs = world.jobs
    if not jobs.n:
        return 0.0
    sizes = np.maximum(jobs.i("size"), 1)
    speed = np.maximum(jobs.speed().at(sizes), 1e-9)
    left_s = np.maximum(jobs.f("remaining_s"), 60.0)
    gpu_s = float((left_s / speed * sizes).sum())
    return max(gpu_s / max(sum(world.capacity()), 1), float((left_s / speed).max()))
