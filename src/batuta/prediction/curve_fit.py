"""A speed curve through what was measured, shaped like the prior where nothing was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.curve import SpeedCurve

PRIOR_EXPONENT = 0.9
"""Beyond the end of the prior, speed grows with n to this power."""
LONGEST_CURVE = 4096
"""GPUs up to which a speed is written down; beyond, the last value holds."""
LEAST_SPEED = 1e-6
LEAST_SPREAD = 0.01


class Footprint(NamedTuple):
    """What a run had, as far as its speed depends on it. More than two nodes or racks count as two."""

    gpus: int
    nodes: int = 1
    racks: int = 1
    gpu_speed: float = 1.0
    """Speed of its type of GPU relative to the reference type."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A curve, and what its 1 stands for."""

    curve: SpeedCurve
    units_per_s: float
    """With one GPU of the reference type."""


def fit_curve(prior: SpeedCurve, largest: int, rates: Mapping[Footprint, float]) -> Fit | None:
    """The curve up to `largest` GPUs; None when nothing was measured.

    It goes through the measured points, and straight from one to the next in log-log. Below the first and
    beyond the last it follows the prior's shape, so that a single point only says how much the prior's 1 is;
    but a job that gained little from its last GPUs is not believed to gain more from the next ones.
    It is never above linear: what seems faster than that was measured badly at the small end.
    """
    points, across_nodes = _points(prior, rates)
    if not points:
        return None
    largest = max(1, min(largest, LONGEST_CURVE))
    sizes = sorted(points)
    n = np.arange(1, max(largest, sizes[-1]) + 1)
    shape = _shape(prior, len(n))
    logs = np.interp(np.log(n), np.log(sizes), np.log([points[size] for size in sizes]))
    rate = np.exp(logs - logs[0])
    first, last = sizes[0], sizes[-1]
    rate[: first - 1] *= shape[: first - 1] / shape[first - 1]
    growth = shape[last:] / shape[last - 1]
    if len(sizes) > 1:
        slope = np.log(points[last] / points[sizes[-2]]) / np.log(last / sizes[-2])
        growth = np.minimum(growth, (n[last:] / last) ** max(slope, 0.0))
    rate[last:] *= growth
    speeds = np.clip(rate / rate[0], LEAST_SPEED, n)[:largest]
    curve = SpeedCurve((0.0, *speeds.tolist()), across_nodes, prior.across_racks)
    return Fit(curve, points[first] / float(shape[first - 1]))


def differs(a: SpeedCurve, b: SpeedCurve, tolerance: float) -> bool:
    """Whether any speed of the two differs by more than this share."""
    if len(a.speeds) != len(b.speeds):
        return True
    left = np.array((*a.speeds[1:], a.across_nodes))
    right = np.array((*b.speeds[1:], b.across_nodes))
    return bool(np.any(np.abs(left - right) > tolerance * np.maximum(left, right)))


def _points(prior: SpeedCurve, rates: Mapping[Footprint, float]) -> tuple[dict[int, float], float]:
    """Units per second by GPU count, as if on one node of the reference type; and the factor across nodes."""
    narrow: dict[int, list[float]] = {}
    wide: dict[int, list[float]] = {}
    for footprint, rate in rates.items():
        one = rate / footprint.gpu_speed / prior.spread(1, footprint.racks)
        (wide if footprint.nodes > 1 else narrow).setdefault(footprint.gpus, []).append(one)
    # Only a size that was measured both ways tells what the way between nodes costs.
    ratios = [median(wide[n]) / median(narrow[n]) for n in wide if n in narrow]
    across = min(1.0, max(LEAST_SPREAD, median(ratios))) if ratios else prior.across_nodes
    points = {n: median(found) / across for n, found in wide.items()}
    return points | {n: median(found) for n, found in narrow.items()}, across


def _shape(prior: SpeedCurve, largest: int) -> FloatArray:
    """The prior for 1..largest, with 1 as its first, and the usual power where it says nothing."""
    n = np.arange(1, largest + 1)
    shape: FloatArray = np.asarray(n, np.float64) ** PRIOR_EXPONENT
    known = np.array(prior.speeds[1 : largest + 1])
    if known[0] > 0 and np.all(known > 0):
        end = len(known)
        shape[end:] *= known[-1] / known[0] / shape[end - 1]
        shape[:end] = known / known[0]
    return np.clip(shape, LEAST_SPEED, n)
