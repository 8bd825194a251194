"""Sia-like: one configuration (GPU type and size) for each job, so that all have a high and even goodput.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP '23,
sections 3.3 and 3.4: a job's goodput in each configuration relative to its worst one, lowered by a restart
factor unless it is what the job has, to the power p; one choice per job by an integer programme. "Like",
because goodput is the curve that the World believes, types differ by a factor per job, and a job that
restarts is left alone by `decide` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.policy import PlacerKind, PolicyTraits, ReplayTraits
from batuta.core.view import Choice, PoolView, TypedView
from batuta.policies.type_choice import (
    TypeOptions,
    best_choice,
    list_type_options,
    one_type,
    restart_factor,
    usual_sizes,
)


@dataclass(frozen=True, slots=True)
class Sia:
    """Minimises the sum of goodput to the power p over jobs that run, and a penalty for each that waits."""

    name: str = "sia"
    p: float = -0.5  # fairness: the lower, the more the slowest jobs count
    waiting: float = 1.1  # the penalty λ for a job without GPUs; a job at its worst configuration costs 1
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        placer=PlacerKind.WHOLE_NODES,
        typed=True,
        weighs=True,
        replay=ReplayTraits("own", adapts_batch=True, explores=(1, 2, 0.01, 1.1)),
    )
    """A job starts on one GPU and may have double the most that it was measured on. Until it was measured
    there, communication counts as a hundredth of the time, and as a tenth more across nodes."""

    def allocate(self, view: PoolView) -> IntArray:
        return self.allocate_types(one_type(view)).gpus

    def allocate_types(self, view: TypedView) -> Choice:
        options = usual_sizes(view, list_type_options(view))
        cost = _normalised(view, options) ** self.p
        return best_choice(options, self.waiting - cost, view.capacity, len(view))


def _normalised(view: TypedView, options: TypeOptions) -> FloatArray:
    """Goodput of each option: the worst one of a job is as good as its own number of GPUs."""
    worst, scale = np.full(len(view), np.inf), np.ones(len(view))
    np.minimum.at(worst, options.row, options.speed)
    at_worst = options.speed == worst[options.row]
    # Row order is option order, and the smallest of equally slow options is the first: written last.
    places = np.flatnonzero(at_worst)[::-1]
    scale[options.row[places]] = options.gpus[places]
    goodput: FloatArray = options.speed / worst[options.row] * scale[options.row]
    # A start costs nothing, nor does a change of a young job.
    jobs, changes = view.jobs, ~options.held(view)
    young = jobs.now_s - jobs.submit_s < jobs.restart_s
    factor = np.where((jobs.gpus == 0) | young, 1.0, restart_factor(jobs))
    goodput[changes] *= factor[options.row[changes]]
    return goodput
