"""Themis: GPUs go to the jobs that are treated worst, measured by finish-time fairness.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI '20: finish-time fairness ρ
(section 3), and the auction in which the worst-off bid first (section 4). What is remembered of a job, its
age and the work that it has done, is the World's. Unlike in the paper no user has to be kept from lying, so
there are no hidden payments: what bidders cannot use goes to the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.policy import PLAIN, PolicyTraits
from batuta.core.view import PoolView
from batuta.policies.growth import Gain, StepList, grow_by_gain
from batuta.policies.order import admit_in_order, leased

_LEAST_S = 1.0  # no job is taken to be shorter, so that ratios stay finite


@dataclass(frozen=True, slots=True)
class Themis:
    """`min` to each that fits, highest ρ first; then growth, first for the worst-off, then for the others.

    ρ is the time from submission to the end in this cluster over the time on a share of 1/N of it, N being
    the number of jobs now. A job's next step is worth the fall of log ρ per GPU, so the auction makes the
    product of all 1/ρ large, which is what the paper's mechanism aims at.
    """

    name: str = "themis"
    fairness: float = 0.8  # the knob f: the share 1 − f of the jobs, those with the highest ρ, bid first
    lease_s: float = 1200.0  # a job keeps what it won: its `min`, and the rest unless others need it to run
    traits: ClassVar[PolicyTraits] = PLAIN

    def allocate(self, view: PoolView) -> IntArray:
        if not len(view):
            return np.zeros(0, dtype=np.int64)
        order = np.argsort(-_rho(view), kind="stable")
        held = leased(view, self.lease_s)
        gpus = np.where(held > 0, view.min, 0)
        wanted = np.where(held > 0, 0, view.min)
        gpus += admit_in_order(wanted, view.capacity - int(gpus.sum()), order)
        gpus += admit_in_order(np.maximum(held - view.min, 0), view.capacity - int(gpus.sum()), order)
        value = _log_rho_saved(view)
        worst = order[: max(1, round((1 - self.fairness) * len(order)))]
        for bidders in (worst, order):
            left = view.capacity - int(gpus.sum())
            gpus = grow_by_gain(view, gpus, left, np.sort(bidders[gpus[bidders] > 0]), value)
        return gpus


def _speed_on_fair_share(view: PoolView) -> FloatArray:
    """The speed with 1/N of the GPUs, or with the smallest size for a part of the time."""
    share = view.capacity / max(len(view), 1)
    within = view.sizes.floor(np.full(len(view), int(share), dtype=np.int64))
    part = np.minimum(share / view.min, 1.0)
    speed = np.where(within > 0, view.speed.at(within), view.speed.at(view.min) * part)
    return np.maximum(speed, 1e-9)


def _rho(view: PoolView) -> FloatArray:
    """ρ if a job went on with its share from now on, over T_ideal: what it would have taken in all on its share."""
    speed, age_s = _speed_on_fair_share(view), np.maximum(view.now_s - view.submit_s, 0.0)
    done_s = np.zeros(len(view)) if view.done_s is None else view.done_s
    ideal_s = np.maximum((done_s + view.remaining_s) / speed, _LEAST_S)
    return (age_s + view.remaining_s / speed) / ideal_s


def _log_rho_saved(view: PoolView) -> Gain:
    """What a step takes off log ρ, per GPU. T_ideal is the same before and after, so it cancels out."""

    def gain(steps: StepList) -> FloatArray:
        age_s = np.maximum(view.now_s - view.submit_s, 0.0)[steps.row]
        left_s = np.maximum(view.remaining_s, _LEAST_S)[steps.row]
        with np.errstate(divide="ignore", invalid="ignore"):
            before_s, after_s = age_s + left_s / steps.slow, age_s + left_s / steps.fast
            saved: FloatArray = np.log(before_s / after_s)
            return saved / steps.width

    return gain
