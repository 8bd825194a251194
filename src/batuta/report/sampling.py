"""Fewer points, same picture: a screen has a thousand pixels, a trace has a million events."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray


def thin_steps(time: FloatArray, value: FloatArray, limit: int) -> tuple[FloatArray, FloatArray]:
    """The step function in at most `limit` points; first, last, least, greatest of each stretch are kept."""
    kept = _changes(value)
    time, value = time[kept], value[kept]
    if len(time) <= limit or time[-1] <= time[0]:
        # Without a span there is one place to draw, whatever happened there.
        return (time[-limit:], value[-limit:]) if len(time) > limit else (time, value)
    stretches = max(limit // 4, 1)
    place = (time - time[0]) * (stretches / (time[-1] - time[0]))
    stretch: IntArray = np.minimum(place.astype(np.int64), stretches - 1)
    by_value = np.lexsort((np.arange(len(time)), value, stretch))
    begins: BoolArray = np.r_[True, np.diff(stretch) > 0]
    ends: BoolArray = np.r_[begins[1:], True]
    # Sorted by stretch first, so a stretch begins and ends at the same positions in both orders.
    chosen = np.unique(
        np.r_[np.flatnonzero(begins), np.flatnonzero(ends), by_value[begins], by_value[ends]],
    )
    return time[chosen], value[chosen]


def mean_per_bin(time: FloatArray, value: FloatArray, edges: FloatArray) -> FloatArray:
    """The time-weighted mean of a step function between neighbouring edges; it is 0 outside of its span."""
    if len(time) < 2:
        return np.zeros(len(edges) - 1)
    area = np.r_[0.0, np.cumsum(value[:-1] * np.diff(time))]
    means: FloatArray = np.diff(np.interp(edges, time, area)) / np.diff(edges)
    return means


def cumulative_shares(values: FloatArray, total: int, limit: int) -> tuple[FloatArray, FloatArray]:
    """Points (value, share of `total` that is at most this value), at most `limit` of them, ends included."""
    ordered = np.sort(values)
    shares = np.arange(1, len(ordered) + 1) / max(total, 1)
    if len(ordered) > limit:
        chosen = np.unique(np.linspace(0, len(ordered) - 1, limit).round().astype(np.int64))
        ordered, shares = ordered[chosen], shares[chosen]
    return ordered, shares


def step_sum(times: FloatArray, changes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The step function that starts at 0 and changes by so much at each of these times, in any order."""
    if not len(times):
        return np.zeros(0), np.zeros(0)
    moments, place = np.unique(times, return_inverse=True)
    return moments, np.cumsum(np.bincount(place, weights=changes, minlength=len(moments)))


def _changes(value: FloatArray) -> BoolArray:
    """Which points of a step function are needed to draw it: changes and both ends."""
    kept = np.ones(len(value), dtype=np.bool_)
    if len(value) > 2:
        kept[1:-1] = value[1:-1] != value[:-2]
    return kept
