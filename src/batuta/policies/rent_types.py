"""Rent where there are several GPU types: an option is a type and a size, and each type has its own rent.

The same prices as with one type, counted in GPUs of average speed: a job's work is what is left of it on such
a GPU, and to hold n GPUs of type t delays the longer jobs by what these are worth to the jobs that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.view import Choice, TypedView
from batuta.policies.rent_options import (
    LEAST_S,
    MOST_S,
    count_longer,
    fair_share,
    hold_still,
    is_tired,
    lateness,
    unrest,
)
from batuta.policies.type_choice import (
    TypeOptions,
    choose_at_prices,
    choose_exactly_of_types,
    fill,
    list_type_options,
    usual_sizes,
)

CHARGE, HORIZON_CHARGES, LEAST_HORIZON_S = 3.0, 3.0, 1000.0
"""A job that changes its type is away for longer than one that grows, and has more to gain."""
EXACT_CELLS = 3_000_000  # options × states (GPUs of each type) up to which the choice is exact


@dataclass(frozen=True, slots=True)
class _Terms:
    """What every option means to its job: one entry for each option."""

    options: TypeOptions
    left_s: FloatArray
    speed: FloatArray  # relative to one GPU of average speed
    prices: FloatArray  # what a unit of work is worth, for each job


def allocate_types(view: TypedView, own_place: float, min_first: bool) -> Choice:
    """A type and a size for each job so that the work of the next while is worth most; see `Rent.min_first`."""
    jobs = len(view)
    gpus, kinds = np.zeros(jobs, dtype=np.int64), np.maximum(view.gpu_type, 0)
    # What a job has is an option even if it says that it gets nowhere with it: so it can be held still.
    options = usual_sizes(view, list_type_options(view, least=1e-9))
    if len(options):
        terms = _terms(view, options, own_place)
        choose = _choose_min_first if min_first else _choose
        steady = choose(options, terms.prices[options.row] * terms.speed, view.capacity)
        values = _values(view, terms, steady, view.jobs.held)
        taken = np.flatnonzero(choose(options, values, view.capacity))
        gpus[options.row[taken]], kinds[options.row[taken]] = options.gpus[taken], options.kind[taken]
    return Choice(gpus, kinds)


def _terms(view: TypedView, options: TypeOptions, own_place: float) -> _Terms:
    jobs, row = view.jobs, options.row
    left = np.clip(np.nan_to_num(jobs.remaining_s, nan=MOST_S, posinf=MOST_S), LEAST_S, MOST_S)
    cluster = int(view.capacity.sum())
    mean = np.maximum(view.speed @ view.capacity / max(cluster, 1), 1e-9)
    work_s = left / mean
    left_s = np.clip(left[row] / options.speed, LEAST_S / 1e3, MOST_S)
    shortest = np.full(len(view), MOST_S)
    np.minimum.at(shortest, row, left_s)
    longer = count_longer(work_s * shortest)
    # What a GPU of each type is worth to the present jobs, as a share of the whole cluster.
    worth = (view.speed / mean[:, None]).mean(axis=0)
    rent = worth / max(float(worth @ view.capacity), 1e-9)
    speed = work_s[row] / left_s
    price = (1.0 + (longer[row] + own_place) * options.gpus * rent[options.kind]) / speed
    prices = np.full(len(view), np.inf)
    np.minimum.at(prices, row, price)
    # How fast each job would be with its share of the cluster; a part of its least size, if that is less.
    share, fair = fair_share(jobs, cluster, shortest), np.full(len(view), 1e-9)
    np.maximum.at(fair, row, speed * np.minimum(share[row] / options.gpus, 1.0))
    urgent = lateness(jobs, work_s, shortest, fair, mean)
    return _Terms(options, left_s, speed, np.where(np.isfinite(prices), prices, 0.0) * urgent)


def _values(view: TypedView, terms: _Terms, steady: BoolArray, held: BoolArray | None) -> FloatArray:
    """Value per second of each option, over the time that a change has to pay for itself."""
    jobs, options, row = view.jobs, terms.options, terms.options.row
    charge_s = CHARGE * np.maximum(jobs.restart_s, 0.0)[row]
    rest_s = 0.0 if jobs.restart_left_s is None else jobs.restart_left_s[row]
    stays, often = options.held(view), unrest(jobs)
    reluctant_s = charge_s * (often**2)[row]
    cost_s = np.where(stays, rest_s, np.where((jobs.gpus > 0)[row], reluctant_s, charge_s))
    horizon_s = np.maximum(HORIZON_CHARGES * charge_s, LEAST_HORIZON_S)
    span_s = np.minimum(horizon_s, terms.left_s + cost_s)
    at = _reference(len(view), row, steady)
    then_left_s, then_speed = terms.left_s[at][row], terms.speed[at][row]
    run_s = np.maximum(span_s - cost_s, 0.0)
    gone_s = then_left_s * np.minimum(run_s / terms.left_s, 1.0)
    kept_s = np.where(stays, reluctant_s, charge_s)
    value: FloatArray = terms.prices[row] * then_speed * (gone_s + kept_s) / span_s
    tired = is_tired(jobs, often)
    if held is not None:
        tired |= held
    return hold_still(np.maximum(value, 1e-9), stays, tired[row])


def _reference(jobs: int, row: IntArray, steady: BoolArray) -> IntArray:
    """The option of each job that its work is counted at: the steady one, or else its first."""
    at = np.zeros(jobs, dtype=np.int64)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    at[row[first]] = first
    chosen = np.flatnonzero(steady)
    at[row[chosen]] = chosen
    return at


def _choose_min_first(options: TypeOptions, values: FloatArray, capacity: IntArray) -> BoolArray:
    """The options worth most such that no job grows while another has none that would fit at its `min`."""
    least = (np.diff(options.row, prepend=-1) != 0) | (np.diff(options.kind, prepend=-1) != 0)
    base = _choose_who_runs(options, values, capacity, np.flatnonzero(least))
    runs = np.isin(options.row, options.row[base])
    grown = np.zeros(len(options), dtype=bool)
    grown[runs] = _choose(options.keep(runs), _served(values[runs]), capacity)
    if _leaves_room(options, grown, base, capacity):
        return fill(options, values, capacity, base)
    return grown


def _choose_who_runs(options: TypeOptions, values: FloatArray, capacity: IntArray, least: IntArray) -> BoolArray:
    """One smallest option for each job if there is a way to serve all of them, else those worth most."""
    wanted = np.zeros(len(options), dtype=bool)
    wanted[least] = True
    own, taken = options.keep(wanted), np.zeros(len(options), dtype=bool)
    chosen = _choose(own, _served(values[least]), capacity)
    if np.count_nonzero(chosen) < len(np.unique(own.row)):
        chosen = fill(own, values[least], capacity, _choose(own, values[least], capacity))
    taken[least[chosen]] = True
    return taken


def _served(values: FloatArray) -> FloatArray:
    """The values with so much on top that to serve one more job is worth more than all growth."""
    return values + 2.0 * float(values.sum() + 1.0)


def _leaves_room(options: TypeOptions, grown: BoolArray, base: BoolArray, capacity: IntArray) -> bool:
    """Whether a job of `base` has nothing, or another that has nothing would fit if none had grown."""
    if np.count_nonzero(grown) < np.count_nonzero(base):
        return True
    waits = ~np.isin(options.row, options.row[base])
    if not waits.any():
        return False
    low = np.full((int(options.row[-1]) + 1, len(capacity)), np.iinfo(np.int64).max)
    np.minimum.at(low, (options.row, options.kind), options.gpus)
    held = low[options.row[grown], options.kind[grown]]
    room = capacity - np.bincount(options.kind[grown], held, len(capacity)).astype(np.int64)
    return bool((options.gpus[waits] <= room[options.kind[waits]]).any())


def _choose(options: TypeOptions, values: FloatArray, capacity: IntArray) -> BoolArray:
    states = float(np.prod((capacity + 1).astype(np.float64)))
    if states * len(options) <= EXACT_CELLS:
        return choose_exactly_of_types(options, values, capacity)
    return choose_at_prices(options, values, capacity)
