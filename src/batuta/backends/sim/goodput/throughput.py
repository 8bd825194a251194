"""How long a step takes for a placement and a local batch size, from measurements (Pollux, OSDI'21)."""

from __future__ import annotations

import math
from collections import defaultdict
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from batuta.backends.sim.goodput.profiles import AppProfile, read_arrays, write_arrays
from batuta.core.arrays import FloatArray, IntArray

Placement = tuple[int, ...]
"""GPUs on each node, in the order of the replicas; no zeros."""


class StepTime(NamedTuple):
    """One optimiser step: all of it, and the part spent in synchronising gradients."""

    step_s: float
    sync_s: float

    def iteration_s(self, accumulation: int) -> float:
        """The step, and `accumulation` further passes that do not synchronise."""
        return self.step_s + (self.step_s - self.sync_s) * accumulation


def rotate_to_smallest(placement: Placement) -> Placement:
    """The lexicographically smallest rotation: in a ring it does not matter which node comes first."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def pack(gpus: int, gpus_per_node: int = 4) -> Placement:
    """Full nodes, then the rest: 4, 4, …, rest."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())


class Throughput:
    """Step times of one application; every answer is computed once and kept, also between runs."""

    def __init__(self, profile: AppProfile) -> None:
        self._profile = profile
        self._curves: dict[Placement, tuple[IntArray, FloatArray]] = {}
        self._known: dict[tuple[Placement, int], StepTime | None] = {}
        self._points: dict[tuple[int, int, int], StepTime | None] | None = None
        self._fresh = False
        self._interpolate: Any = None
        self._most_nodes = int(profile.scalability.num_nodes.max())
        measured = profile.placements
        for code in np.unique(measured.placement):
            rows = np.flatnonzero(measured.placement == code)
            rows = rows[np.argsort(measured.local_bsz[rows])]
            times = np.column_stack((measured.step_s[rows], measured.sync_s[rows]))
            self._curves[tuple(map(int, str(code)))] = (measured.local_bsz[rows], times)

    def at(self, placement: Placement, local: int) -> StepTime | None:
        """Step time, or None where nothing near was measured."""
        key = (placement, local)
        try:
            return self._known[key]
        except KeyError:
            pass
        smallest = rotate_to_smallest(placement)
        curve = self._curves.get(smallest)
        if curve is not None:
            time = _along(curve[0], curve[1], local)
        else:
            time = self._between(min(len(smallest), self._most_nodes), sum(smallest), local)
        self._known[key] = time
        return time

    def save(self) -> None:
        """Keep the interpolated points for the next run, which then does without SciPy."""
        if self._points is None or not self._fresh:
            return
        # Another process may have saved since: its points are as true as ours.
        points = {**_load_points(self._cache_name()), **self._points}
        missing = StepTime(np.nan, np.nan)
        write_arrays(
            self._cache_name(),
            {
                "keys": np.array(list(points), np.int64).reshape(-1, 3),
                "times": np.array([time or missing for time in points.values()], float).reshape(-1, 2),
            },
        )
        self._fresh = False

    def _between(self, nodes: int, gpus: int, local: int) -> StepTime | None:
        """Linear over (nodes, replicas, local batch) for a placement that was not measured itself."""
        if self._points is None:
            self._points = _load_points(self._cache_name())
        key = (nodes, gpus, local)
        if key not in self._points:
            if self._interpolate is None:
                self._interpolate = _interpolator(self._profile)
            # One point at a time, because where the triangulation is degenerate the answer depends on the
            # simplex that the search starts from; this way it is the first one, as in the published runs.
            step_s, sync_s = self._interpolate([key])[0].tolist()
            self._points[key] = None if math.isnan(step_s) else StepTime(step_s, sync_s)
            self._fresh = True
        return self._points[key]

    def _cache_name(self) -> str:
        # Another SciPy may triangulate otherwise.
        return f"points-{self._profile.digest}-scipy-{version('scipy')}"


def _along(locals_: IntArray, times: FloatArray, local: int) -> StepTime | None:
    if not locals_[0] <= local <= locals_[-1]:
        return None
    if len(locals_) == 1:
        return StepTime(*times[0].tolist())
    high = min(max(int(np.searchsorted(locals_, local)), 1), len(locals_) - 1)
    low = high - 1
    slope = (times[high] - times[low]) / (locals_[high] - locals_[low])
    return StepTime(*(slope * (local - locals_[low]) + times[low]).tolist())


def _load_points(name: str) -> dict[tuple[int, int, int], StepTime | None]:
    stored = read_arrays(name) or {}
    keys, times = stored.get("keys"), stored.get("times")
    if keys is None or times is None or keys.shape != (len(times), 3) or times.shape != (len(keys), 2):
        return {}
    return {
        (nodes, gpus, local): None if math.isnan(step_s) else StepTime(step_s, sync_s)
        for (nodes, gpus, local), (step_s, sync_s) in zip(keys.tolist(), times.tolist(), strict=True)
    }


def _interpolator(profile: AppProfile) -> Any:
    """Linear interpolation over a Delaunay triangulation of all measurements, placements first."""
    from scipy.interpolate import LinearNDInterpolator  # 0.7 s of CPU time, and rarely needed

    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    rows = profile.placements
    columns = (rows.placement, rows.local_bsz, rows.step_s, rows.sync_s)
    for code, local, step_s, sync_s in zip(*(column.tolist() for column in columns), strict=True):
        digits = str(code)
        groups[len(digits), sum(map(int, digits)), local].append((step_s, sync_s))
    # Placements with equal counts are averaged, and the order is fixed: it decides the triangulation.
    keys = sorted(groups)
    means = [[sum(column) / len(groups[key]) for column in zip(*groups[key], strict=True)] for key in keys]
    more = profile.scalability
    at = np.column_stack((more.num_nodes, more.num_replicas, more.local_bsz))
    times = np.column_stack((more.step_s, more.sync_s))
    return LinearNDInterpolator(
        np.concatenate([np.array(keys, float), at.astype(float)]), np.concatenate([np.array(means), times])
    )
