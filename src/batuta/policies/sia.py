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
from batuta.core.typed_view import Choice, TypedView
from batuta.core.view import PoolView
from batuta.policies.best_choice import best_choice
from batuta.policies.restart_factor import restart_factor
from batuta.policies.type_options import TypeOptions, list_type_options, one_type, usual_sizes


@dataclass(frozen=True, slots=True)
class Sia:
    """Minimises the sum of goodput to the power p over jobs that run, and a penalty for each that waits."""

    name: str = "sia"
    p: float = -0.5
    """Fairness: the lower, the more the slowest jobs count."""
    waiting: float = 1.1
    """The penalty λ for a job without GPUs; a job at its worst configuration costs 1."""
    knowledge: ClassVar[str] = "own"
    adapts_batch: ClassVar[bool] = True
    explores: ClassVar[tuple[float, ...]] = (1, 2, 0.01, 1.1)
    """It starts on one GPU, goes up to double the most that it was measured on, and hopes for the best there:
    communication takes a hundredth of the time, and across nodes a tenth more."""
    weighs: ClassVar[bool] = True
    placement: ClassVar[str] = "whole-nodes"

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
    goodput[~options.held(view)] *= _factor(view.jobs)[options.row[~options.held(view)]]
    return goodput


def _factor(jobs: PoolView) -> FloatArray:
    """What a change leaves of the goodput; a start costs nothing, nor does a change of a young job."""
    young = jobs.now_s - jobs.submit_s < jobs.restart_s
    return np.where((jobs.gpus == 0) | young, 1.0, restart_factor(jobs))
