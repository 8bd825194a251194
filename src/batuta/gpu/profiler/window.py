"""The last minutes of somebody's use of GPUs: a ring of samples, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from batuta.gpu.profiler.figures import Floats


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample of a pod, or of a whole GPU. NaN: not measured."""

    time_s: float = np.nan
    utilisation: float = np.nan
    """Share of the time of its GPUs, from 0 to 1."""
    memory_mib: float = np.nan
    """Of all its GPUs together."""
    sm_activity: float = np.nan
    pcie_mib_s: float = np.nan
    nvlink_mib_s: float = np.nan
    power_w: float = np.nan
    temperature_c: float = np.nan
    busiest_cores: float = np.nan
    """CPU time per second of the process that used most of it."""
    read_mib_s: float = np.nan
    written_mib_s: float = np.nan
    gpus: float = np.nan
    neighbours: float = np.nan
    """How many others had work on the same GPUs."""


_COLUMNS: Final = tuple(field.name for field in fields(Moment))
_AT: Final = {name: place for place, name in enumerate(_COLUMNS)}
_SUMMED: Final = (
    "memory_mib",
    "power_w",
    "pcie_mib_s",
    "nvlink_mib_s",
    "read_mib_s",
    "written_mib_s",
    "gpus",
)
_MOST: Final = ("time_s", "temperature_c", "busiest_cores", "neighbours")


class Window:
    """The newest samples, up to a number; older ones make room."""

    __slots__ = ("_next", "_ring", "count")

    def __init__(self, capacity: int) -> None:
        self._ring = np.full((capacity, len(_COLUMNS)), np.nan)
        self._next = 0
        self.count = 0
        """How many samples there ever were."""

    def add(self, moment: Moment) -> None:
        self._ring[self._next] = [getattr(moment, name) for name in _COLUMNS]
        self._next = (self._next + 1) % len(self._ring)
        self.count += 1

    def signals(self) -> Signals:
        """All samples, the oldest first."""
        kept = min(self.count, len(self._ring))
        begin = (self._next - kept) % len(self._ring)
        ordered = np.roll(self._ring, -begin, axis=0)[:kept]
        return Signals(ordered, since_start=self.count <= len(self._ring))


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Samples as columns, the oldest first."""

    table: Floats
    since_start: bool = True
    """Whether the first sample is the first that there ever was."""

    def __len__(self) -> int:
        return len(self.table)

    def column(self, name: str) -> Floats:
        column: Floats = self.table[:, _AT[name]]
        return column

    @property
    def time_s(self) -> Floats:
        return self.column("time_s")

    @property
    def utilisation(self) -> Floats:
        return self.column("utilisation")

    @property
    def memory_mib(self) -> Floats:
        return self.column("memory_mib")

    @property
    def sm_activity(self) -> Floats:
        return self.column("sm_activity")

    @property
    def pcie_mib_s(self) -> Floats:
        return self.column("pcie_mib_s")

    @property
    def nvlink_mib_s(self) -> Floats:
        return self.column("nvlink_mib_s")

    @property
    def busiest_cores(self) -> Floats:
        return self.column("busiest_cores")

    @property
    def read_mib_s(self) -> Floats:
        return self.column("read_mib_s")

    @property
    def written_mib_s(self) -> Floats:
        return self.column("written_mib_s")

    @property
    def neighbours(self) -> Floats:
        return self.column("neighbours")

    @property
    def gpus(self) -> int:
        """The most GPUs that it had work on at once."""
        known = self.column("gpus")
        known = known[~np.isnan(known)]
        return int(known.max()) if len(known) else 0


def together(parts: Sequence[Signals]) -> Signals:
    """The pods of a job as one: their newest samples were taken at the same time.

    Shares of time are averaged by GPUs, amounts are added up, and of temperatures and the like the most
    counts. The whole is as long as its longest part: a pod that came later was not there before.
    """
    length = max((len(part) for part in parts), default=0)
    if len(parts) == 1 or not length:
        return parts[0] if parts else Signals(np.zeros((0, len(_COLUMNS))))
    stack = np.full((len(parts), length, len(_COLUMNS)), np.nan)
    for place, part in enumerate(parts):
        stack[place, length - len(part) :] = part.table
    whole = np.full((length, len(_COLUMNS)), np.nan)
    weights = np.nan_to_num(stack[:, :, _AT["gpus"]], nan=0.0)
    for name, place in _AT.items():
        column = stack[:, :, place]
        known = ~np.isnan(column)
        filled = np.where(known, column, 0.0)
        if name in _SUMMED:
            value = filled.sum(axis=0)
        elif name in _MOST:
            value = np.where(known, column, -np.inf).max(axis=0)
        else:
            weight = np.where(known, np.maximum(weights, 1.0), 0.0)
            value = (filled * weight).sum(axis=0) / np.maximum(weight.sum(axis=0), 1.0)
        whole[:, place] = np.where(known.any(axis=0), value, np.nan)
    return Signals(whole, since_start=all(part.since_start for part in parts))
