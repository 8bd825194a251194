"""At most one option for each job so that the total gain is as high as the GPUs of every type allow."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.typed_view import Choice
from batuta.policies.best_of_types import choose_at_prices, choose_exactly_of_types
from batuta.policies.best_total import choose_by_price, choose_exactly
from batuta.policies.options import Options
from batuta.policies.type_options import TypeOptions

_EXACT_CELLS = 20_000_000
"""Up to so many cells a dynamic programme is worth its time: options × different numbers of free GPUs."""


def best_choice(options: TypeOptions, gain: FloatArray, capacity: IntArray, rows: int) -> Choice:
    """The options to take; a job without one gets nothing.

    Exact by dynamic programmes for clusters of a few dozen GPUs of each type, or thousands of one; beyond
    that, a price per GPU and type comes within a few jobs' gain of the best total.
    """
    worth = (gain > 0) & (options.gpus <= capacity[options.kind])
    options, gain = options.keep(worth), gain[worth]
    if not len(options):
        return Choice(np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64))
    if len(capacity) == 1:
        gpus = _of_one_type(options, gain, int(capacity[0]), rows)
        return Choice(gpus, np.zeros(rows, dtype=np.int64))
    if len(options) * int((capacity + 1).prod()) <= _EXACT_CELLS:
        taken = choose_exactly_of_types(options, gain, capacity)
    else:
        taken = choose_at_prices(options, gain, capacity)
    return _as_choice(options, taken, rows)


def _as_choice(options: TypeOptions, taken: BoolArray, rows: int) -> Choice:
    gpus, kinds = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    gpus[options.row[taken]] = options.gpus[taken]
    kinds[options.row[taken]] = options.kind[taken]
    return Choice(gpus, kinds)


def _of_one_type(options: TypeOptions, gain: FloatArray, capacity: int, rows: int) -> IntArray:
    named, job = np.unique(options.row, return_inverse=True)
    nothing = np.arange(len(named))
    job = np.concatenate((nothing, job))
    extra = np.concatenate((np.zeros_like(nothing), options.gpus))
    order = np.lexsort((extra, job))
    worth = np.concatenate((np.zeros(len(named)), gain))
    listed = _only_better(Options(job[order], extra[order], worth[order]))
    chosen, best = choose_by_price(listed, capacity)
    if not best and len(listed.extra) * (capacity + 1) <= _EXACT_CELLS:
        chosen = choose_exactly(listed, capacity)
    gpus = np.zeros(rows, dtype=np.int64)
    gpus[named] = chosen
    return gpus


def _only_better(options: Options) -> Options:
    """Without options that a smaller one of the same job equals or beats."""
    while True:
        better = (np.diff(options.speed, prepend=-np.inf) > 0) | (options.extra == 0)
        if better.all():
            return options
        options = options.keep(better)
