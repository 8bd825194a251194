"""How far a job is, by its own reports, and how much its neighbours cost it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from batuta.gpu.profiler.figures import Floats

_RECENT: Final = 32
"""Reports that say how fast a job is now."""
_FEWEST_STEPS: Final = 3
_FEWEST_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class StepReport:
    """What `batuta.sdk` says at one moment."""

    time_s: float
    step: float
    total_steps: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job is, how fast, and when it will be done."""

    step: float
    step_time_s: float | None = None
    finish_s: float | None = None
    """Seconds since 1970; None where the job does not say how many steps it has."""


def progress_of(reports: Sequence[StepReport]) -> Progress | None:
    """None where the job has said nothing. Reports come in the order of time."""
    if not reports:
        return None
    recent = _since_restart(reports)[-_RECENT:]
    last = recent[-1]
    pace_s = _pace_s(recent)
    finish_s = None
    if pace_s is not None and last.total_steps is not None:
        finish_s = last.time_s + max(last.total_steps - last.step, 0.0) * pace_s
    return Progress(last.step, pace_s, finish_s)


def slowdown(step_times_s: Floats, shared: Floats) -> float | None:
    """How many times longer a step takes with neighbours on the same GPU; None where either is unknown.

    `shared` says of each step how many neighbours there were.
    """
    alone, crowded = step_times_s[shared == 0], step_times_s[shared > 0]
    if min(len(alone), len(crowded)) < _FEWEST_STEPS:
        return None
    return max(1.0, float(np.median(crowded)) / max(float(np.median(alone)), 1e-9))


def lost_share(alone: Floats, crowded: Floats) -> float | None:
    """The same for a job that reports no steps: the share of the GPU's time that it had, by what it has."""
    if min(len(alone), len(crowded)) < _FEWEST_SAMPLES:
        return None
    has = float(np.mean(crowded))
    return max(1.0, float(np.mean(alone)) / has) if has > 0.01 else None


def _since_restart(reports: Sequence[StepReport]) -> Sequence[StepReport]:
    """From where the steps last began again: a job that was resumed goes back to its checkpoint."""
    for place in range(len(reports) - 1, 0, -1):
        if reports[place].step < reports[place - 1].step:
            return reports[place:]
    return reports


def _pace_s(reports: Sequence[StepReport]) -> float | None:
    paces = [
        (after.time_s - before.time_s) / (after.step - before.step)
        for before, after in pairwise(reports)
        if after.step > before.step and after.time_s > before.time_s
    ]
    return float(np.median(paces)) if paces else None
