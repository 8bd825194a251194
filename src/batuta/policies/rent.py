"""Rent: each job pays for its GPUs by the time that it makes the longer ones wait. Batuta's own policy.

In the fluid model of jobs that share C GPUs, the sum of completion times is least when each job's remaining
work has a constant price, and the price of the k-th longest job is found from those before it (heSRPT for
arbitrary, unequal speed-ups). Linearised, one unit of a job's work takes 1/s(n) seconds with n GPUs; each
such second costs the job itself 1, and delays the r longer jobs and one more by n/C each. So its price is

    p = min over n of (1 + (r + 1)·n/C) / s(n)

Each cycle then chooses the sizes with the highest total value over the next while, in which a change has to
earn its restart, and the speed at each size is that of the phases which the job will be in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.typed_view import Choice, TypedView
from batuta.core.view import PoolView
from batuta.policies import rent_types
from batuta.policies.rent_choice import choose_sizes
from batuta.policies.rent_guard import hold_still, is_tired, unrest, urgency
from batuta.policies.rent_options import SizeOptions, count_longer, list_sizes


@dataclass(frozen=True, slots=True)
class Rent:
    """The sizes whose work is worth most, where a job's work is dear if few are longer and it scales well."""

    name: str = "rent"
    charge: float = 2.0
    """Restarts charged per change: one to make it, one because it will be undone some day."""
    horizon_charges: float = 10.0
    """A change has this many times its charge to pay for itself, …"""
    least_horizon_s: float = 600.0
    """… but at least this long."""
    own_place: float = 1.0
    """Jobs as long as this one that are counted beside the longer ones; more favours the makespan."""
    by_rank: bool = True
    """False makes everybody's work worth the same: to see what prices are good for."""
    weighs: ClassVar[bool] = True
    adapts_batch: ClassVar[bool] = True
    placement: ClassVar[str] = "whole-nodes"
    look_again_s: ClassVar[float] = 300.0
    """Somebody becomes late by waiting alone: so often it is looked at again while jobs wait."""

    def allocate(self, view: PoolView) -> IntArray:
        if not len(view) or view.capacity <= 0:
            return np.zeros(len(view), dtype=np.int64)
        options = list_sizes(view)
        prices = self.prices(options, view.capacity) * urgency(view, options)
        steady = choose_sizes(options.gpus, prices * options.speed, view.capacity)
        values = self._values(view, options, prices, steady)
        return choose_sizes(options.gpus, values, view.capacity)

    def allocate_types(self, view: TypedView) -> Choice:
        return rent_types.allocate_types(view, self.own_place)

    def prices(self, options: SizeOptions, capacity: int) -> FloatArray:
        """What a unit of each job's work is worth."""
        if not self.by_rank:
            return np.ones(len(options.alone_s))
        longer = count_longer(options.alone_s * options.left_s.min(axis=0))
        rent = (longer + self.own_place) / capacity
        with np.errstate(divide="ignore", invalid="ignore"):
            price = (1.0 + rent * options.gpus) / options.speed
        least: FloatArray = np.where(options.legal, price, np.inf).min(axis=0)
        return np.where(np.isfinite(least), least, 0.0)

    def _values(
        self, view: PoolView, options: SizeOptions, prices: FloatArray, steady: IntArray
    ) -> FloatArray:
        """Value per second of each size, over the time that a change has to pay for itself."""
        gpus, jobs = options.gpus, np.arange(len(view))
        charge_s = self.charge * np.maximum(view.restart_s, 0.0)
        rest_s = np.zeros(len(view)) if view.restart_left_s is None else view.restart_left_s
        stays, often = gpus == view.gpus, unrest(view)
        reluctant_s = charge_s * often**2
        cost_s = np.where(stays, rest_s, np.where(view.gpus > 0, reluctant_s, charge_s))
        horizon_s = np.maximum(self.horizon_charges * charge_s, self.least_horizon_s)
        span_s = np.minimum(horizon_s, options.left_s + cost_s)
        # What is left is counted at the size that the job would have if changes were free.
        at = (gpus >= steady).argmax(axis=0)
        then_left_s, then_speed = options.left_s[at, jobs], options.speed[at, jobs]
        run_s = np.maximum(span_s - cost_s, 0.0)
        later_s = then_left_s * np.maximum(1.0 - run_s / options.left_s, 0.0)
        for shared in view.outlooks:
            rows = shared.rows
            later_s[:, rows] = shared.left_after_s(
                options.alone_s[rows], gpus[:, rows].T, run_s[:, rows].T, gpus[at[rows], rows]
            ).T
        # To lose its GPUs would cost a job its restart: without this, one near its end never gets them back.
        kept_s = np.where(stays, reluctant_s, charge_s)
        value = prices * then_speed * (then_left_s - later_s + kept_s) / span_s
        value = np.where(options.legal, np.maximum(value, 1e-9), 0.0)
        return hold_still(value, stays, is_tired(view, often))
