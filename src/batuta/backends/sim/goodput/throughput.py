"""How long a step takes for a placement and a local batch size, from measurements (Pollux, OSDI'21).

Interpolated points are kept between runs. A fault in what is kept is never a fault of the run.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import zipfile
import zlib
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batuta.backends.sim.goodput.profiles import AppProfile
from batuta.core.arrays import FloatArray, IntArray

Placement = tuple[int, ...]  # GPUs on each node, in the order of the replicas; no zeros


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
        if key in self._known:
            return self._known[key]
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
        _store(
            self._cache_name(),
            keys=np.array(list(points), np.int64).reshape(-1, 3),
            times=np.array([time or missing for time in points.values()], float).reshape(-1, 2),
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


def _cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/batuta/goodput`, else below `~/.cache`; None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():  # the XDG specification: a relative path is to be ignored
        return Path(named, "batuta", "goodput")
    try:
        return Path.home() / ".cache" / "batuta" / "goodput"
    except RuntimeError:
        return None


def _load_points(name: str) -> dict[tuple[int, int, int], StepTime | None]:
    """The points that were stored under this name; none where the file is absent, cut short or not readable."""
    folder = _cache_folder()
    if folder is None:
        return {}
    try:
        # Opened here, because NumPy leaves a file open that turns out to be broken.
        with (folder / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
            keys, times = stored["keys"], stored["times"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        return {}
    if keys.shape != (len(times), 3) or times.shape != (len(keys), 2):
        return {}
    return {
        (nodes, gpus, local): None if math.isnan(step_s) else StepTime(step_s, sync_s)
        for (nodes, gpus, local), (step_s, sync_s) in zip(keys.tolist(), times.tolist(), strict=True)
    }


def _store(name: str, **arrays: NDArray[Any]) -> None:
    """Stores under this name; a reader sees the old or the new file, never a part."""
    folder = _cache_folder()
    if folder is None:
        return
    unfinished: str | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **dict[str, Any](arrays))
        os.replace(unfinished, folder / f"{name}.npz")
    except OSError:  # read-only or full: the next run interpolates again
        if unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)


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
