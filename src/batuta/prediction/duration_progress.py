"""What is left of a living job: by its own reports, by history, or by both, the surer one heard more."""

from __future__ import annotations

import math

from batuta.core.expected import ExpectedWork
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.prediction.duration import LEAST_S, Quantiles
from batuta.prediction.duration_history import spent_s

FIRST_SD = 0.35
"""Spread of log seconds of what a job says is left when it has just begun …"""
LAST_SD = 0.05
"""… and when it is nearly done: it shrinks with the share of the work that is left."""
UNKNOWN_SD = 1.5
"""Of a job of which nobody knows anything: P90 is seven times P50."""


def remaining(world: World, job: JobId) -> Quantiles:
    """Seconds left on one GPU of the reference type, for a job that is not over.

    A job that has outlasted what was foretold of it is believed to go on, by what jobs did that had lasted as
    long. One that reports a share of its work is believed more the further it is.
    """
    jobs, row = world.jobs, world.jobs.row(job)
    since_s = max(0.0, world.now_s - jobs.f("anchor_s").item(row))
    left_s = jobs.f("remaining_s").item(row) - jobs.f("rate").item(row) * since_s
    progress = world.progress.get(job)
    fraction = None if progress is None else progress.fraction
    by_history = _by_history(jobs.jobs[row].expected, jobs.jobs[row].work_s, spent_s(world, job))
    if fraction is None or not math.isfinite(left_s):
        return by_history
    return combined(reported(max(left_s, LEAST_S), fraction), by_history)


def reported(left_s: float, fraction: float) -> Quantiles:
    """What a job that has done this share of its work, and says that so much is left, can be believed."""
    undone = 1.0 - min(max(fraction, 0.0), 1.0)
    return Quantiles.around(max(left_s, LEAST_S), LAST_SD + (FIRST_SD - LAST_SD) * undone)


def combined(a: Quantiles, b: Quantiles) -> Quantiles:
    """Two beliefs about the same time as one: each counts by how sure it is (inverse variance, in logs)."""
    weight_a, weight_b = (1.0 / max(one.log_sd, LAST_SD) ** 2 for one in (a, b))
    total = weight_a + weight_b
    median = math.exp((weight_a * math.log(a.p50_s) + weight_b * math.log(b.p50_s)) / total)
    return Quantiles.around(median, total**-0.5)


def _by_history(expected: ExpectedWork | None, work_s: float, spent: float) -> Quantiles:
    if expected is not None:
        belief = Quantiles.of(expected.seconds)
    else:
        belief = Quantiles.around(max(work_s, LEAST_S), UNKNOWN_SD)
    return belief.left_after(spent)
