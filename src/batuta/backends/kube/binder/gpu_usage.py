"""Utilisation of each GPU, as the node agents report it: fresh reports count, stale ones do not."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from batuta.backends.kube import objects
from batuta.backends.kube.binder.gpu_table import UNKNOWN
from batuta.backends.kube.binder.node_table import Floats, Rows, padded

STALE_S: Final = 90.0
HALF_LIFE_S: Final = 30.0
STEP_S: Final = 5.0
"""Ages are looked at in steps, so that a cycle does not have to work out everything anew."""
_FEWEST: Final = 8
_MOST_GPUS: Final = 1024


class _Gpu(msgspec.Struct):
    """One line of a report."""

    index: int
    utilisation: float | None = None


class _Report(msgspec.Struct):
    """What the agent writes."""

    time: float
    gpus: list[_Gpu] = []


class GpuUsage:
    """The last report of each node. Rows are those of the node table."""

    def __init__(self) -> None:
        self._text: dict[int, str] = {}
        self._time_s: Floats = np.zeros(0)
        self._reported: Floats = np.zeros((0, _FEWEST))
        self.now_s = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._text

    def resize(self, capacity: int, cards: int = 0) -> None:
        rows, width = self._reported.shape
        shape = (max(rows, capacity), max(width, cards))
        self._reported = padded(self._reported, shape, math.nan)
        self._time_s = padded(self._time_s, shape[:1], -math.inf)

    def put(self, row: int, text: str) -> None:
        """Reads a node's annotation. What cannot be read is no report."""
        if self._text.get(row, "") == text:
            return
        self._time_s[row] = -math.inf
        self._reported[row] = np.nan
        self._text.pop(row, None)
        if text:
            self._text[row] = text
            self._read(row, text)

    def tick(self, now_s: float) -> bool:
        """Moves on to another time; true when that can make a difference."""
        before, self.now_s = self.now_s, now_s
        return not self.is_empty and before // STEP_S != now_s // STEP_S

    def busy(self, rows: Rows, width: int) -> Floats:
        """Nodes × GPUs: the last fresh report; NaN where there is none."""
        # A report from the future comes from a clock that is wrong, and is as good as an old one.
        fresh = np.abs(self._stepped_now_s - self._time_s[rows]) <= STALE_S
        table = np.where(fresh[:, None], self._reported[rows], np.nan)
        if table.shape[1] >= width:
            return table[:, :width]
        return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=np.nan)

    def believed(self, rows: Rows, width: int) -> Floats:
        """Nodes × GPUs: how busy each probably is; a report counts half after each half-life."""
        busy = self.busy(rows, width)
        age_s = np.clip(self._stepped_now_s - self._time_s[rows], 0.0, STALE_S)
        trust = (0.5 ** (age_s / HALF_LIFE_S))[:, None]
        return np.where(np.isnan(busy), UNKNOWN, trust * np.nan_to_num(busy) + (1 - trust) * UNKNOWN)

    @property
    def _stepped_now_s(self) -> float:
        return self.now_s // STEP_S * STEP_S

    def _read(self, row: int, text: str) -> None:
        found = objects.decode_annotation(text, _Report, _Report(-math.inf))
        # A GPU that cannot tell (it fell off the bus) is not known to be idle.
        told = {one.index: one.utilisation for one in found.gpus if one.utilisation is not None}
        gpus = {index: value for index, value in told.items() if 0 <= index < _MOST_GPUS}
        self.resize(0, max(gpus, default=0) + 1)
        for index, value in gpus.items():
            self._reported[row, index] = min(max(value, 0.0), 1.0)
        self._time_s[row] = found.time
