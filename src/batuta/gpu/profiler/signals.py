"""Keep the samples of the last minutes in columns, and summarise them. A value not measured is NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

BUSY: Final = 0.05  # a GPU that is used less than this is idle: a monitor or a watchdog read it
_PLATEAU_TOLERANCE: Final = 0.02
_MIN_SAMPLES: Final = 10
_SUM_COLUMNS: Final = ("memory_mib", "power_w", "pcie_mib_s", "nvlink_mib_s", "read_mib_s", "written_mib_s", "gpus")
_MAX_COLUMNS: Final = ("time_s", "temperature_c", "busiest_cores", "neighbours")
FINE_S: Final = 0.2
FINE_KEPT_S: Final = 60.0
_FINE_STEPS: Final = round(FINE_KEPT_S / FINE_S)
_MIN_FINE_SAMPLES: Final = 100
_MIN_KNOWN: Final = 2 / 3


@dataclass(frozen=True, slots=True)
class SampleStats:
    """Statistics of a quantity. `duty_cycle`: the share of samples with any work."""

    mean: float
    p95: float
    peak: float
    duty_cycle: float


def sample_stats(values: Floats, busy: float = BUSY) -> SampleStats | None:
    """Return the statistics of measured values; None without any."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    return SampleStats(
        mean=float(known.mean()),
        p95=float(np.quantile(known, 0.95)),
        peak=float(known.max()),
        duty_cycle=float((known > busy).mean()),
    )


def mean_of(values: Floats) -> float | None:
    """Return the mean of measured values; None without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def memory_plateau_mib(memory_mib: Floats) -> float | None:
    """Return the level that memory has reached and stays at; None while it grows or shrinks.

    A level counts once the last quarter of the samples, and at least ten of them, stay within 2 % of it. A
    few samples apart from it do not matter: a checkpoint may take some memory for a moment.
    """
    known = memory_mib[~np.isnan(memory_mib)]
    tail = known[-max(_MIN_SAMPLES, len(known) // 4) :]
    if len(tail) < _MIN_SAMPLES:
        return None
    level = float(np.median(tail))
    if level <= 0.0:
        return None
    near = np.abs(tail - level) <= _PLATEAU_TOLERANCE * level
    halves = np.array_split(tail, 2)
    drift = abs(float(np.median(halves[1]) - np.median(halves[0])))
    return level if near.mean() >= 0.8 and drift <= _PLATEAU_TOLERANCE * level / 2 else None


class SampleRow(NamedTuple):
    """One sample of a pod, or of a whole GPU. None: not measured."""

    time_s: float | None = None
    utilisation: float | None = None  # share of the time of its GPUs, from 0 to 1
    memory_mib: float | None = None  # of all its GPUs together
    sm_activity: float | None = None
    pcie_mib_s: float | None = None
    nvlink_mib_s: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    busiest_cores: float | None = None  # CPU time per second of the process that used most of it
    read_mib_s: float | None = None
    written_mib_s: float | None = None
    gpus: float | None = None
    neighbours: float | None = None  # how many others had work on the same GPUs


_AT: Final = {name: place for place, name in enumerate(SampleRow._fields)}


class Window:
    """A ring of the newest samples, up to a number."""

    __slots__ = ("_next", "_ring", "count")

    def __init__(self, capacity: int) -> None:
        self._ring = np.full((capacity, len(_AT)), np.nan)
        self._next = 0
        self.count = 0  # how many samples there ever were

    def add(self, moment: SampleRow) -> None:
        self._ring[self._next] = np.array(moment, dtype=float)  # None becomes NaN
        self._next = (self._next + 1) % len(self._ring)
        self.count += 1

    def signals(self) -> Signals:
        kept = min(self.count, len(self._ring))
        begin = (self._next - kept) % len(self._ring)
        ordered = np.roll(self._ring, -begin, axis=0)[:kept]
        return Signals(ordered, since_start=self.count <= len(self._ring))


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Samples as columns, the oldest first: each field of `SampleRow` is an array."""

    table: Floats
    since_start: bool = True  # whether the first sample is the first that there ever was

    def __len__(self) -> int:
        return len(self.table)

    def __getattr__(self, name: str) -> Floats:
        if name not in _AT:
            raise AttributeError(name)
        column: Floats = self.table[:, _AT[name]]
        return column

    @property
    def gpus(self) -> int:
        """The largest number of GPUs used at once."""
        return int(np.nan_to_num(self.table[:, _AT["gpus"]]).max(initial=0.0))


def merge_signals(parts: Sequence[Signals]) -> Signals:
    """Return the pods of a job as one: their newest samples were taken at the same time.

    Shares of time are averaged by GPUs, amounts are added up, and of temperatures and the like the most
    counts. The whole is as long as its longest part: a pod that came later was not there before.
    """
    length = max((len(part) for part in parts), default=0)
    if len(parts) == 1 or not length:
        return parts[0] if parts else Signals(np.zeros((0, len(_AT))))
    stack = np.full((len(parts), length, len(_AT)), np.nan)
    for place, part in enumerate(parts):
        stack[place, length - len(part) :] = part.table
    whole = np.full((length, len(_AT)), np.nan)
    weights = np.nan_to_num(stack[:, :, _AT["gpus"]], nan=0.0)
    for name, place in _AT.items():
        column = stack[:, :, place]
        known = ~np.isnan(column)
        filled = np.where(known, column, 0.0)
        if name in _SUM_COLUMNS:
            value = filled.sum(axis=0)
        elif name in _MAX_COLUMNS:
            value = np.where(known, column, -np.inf).max(axis=0)
        else:
            weight = np.where(known, np.maximum(weights, 1.0), 0.0)
            value = (filled * weight).sum(axis=0) / np.maximum(weight.sum(axis=0), 1.0)
        whole[:, place] = np.where(known.any(axis=0), value, np.nan)
    return Signals(whole, since_start=all(part.since_start for part in parts))


class FineSignal:
    """The utilisation of one GPU in the last minute, in steps of a fifth of a second."""

    __slots__ = ("_counts", "_numbers", "_sums")

    def __init__(self) -> None:
        self._numbers = [-1] * _FINE_STEPS
        self._sums = [0.0] * _FINE_STEPS
        self._counts = [0] * _FINE_STEPS

    def add(self, samples: Iterable[tuple[float, float]]) -> None:
        """Add times, in seconds, with the utilisation of the GPU."""
        for time_s, busy in samples:
            number = int(time_s / FINE_S)
            place = number % _FINE_STEPS
            if self._numbers[place] != number:
                self._numbers[place], self._sums[place], self._counts[place] = number, 0.0, 0
            self._sums[place] += busy
            self._counts[place] += 1

    def signal(self, time_s: float) -> Floats | None:
        """Return the last so many seconds, the oldest first; None where larger parts are unknown."""
        last, wanted = max(self._numbers), min(round(time_s / FINE_S), _FINE_STEPS)
        signal = np.array([self._at(number) for number in range(last - wanted + 1, last + 1)])
        known = ~np.isnan(signal)
        if last < 0 or wanted < _MIN_FINE_SAMPLES or known.mean() < _MIN_KNOWN:
            return None
        # A driver that samples more slowly than this leaves holes: what was last known holds until the next.
        places = np.maximum.accumulate(np.where(known, np.arange(wanted), 0))
        return signal[places]

    def _at(self, number: int) -> float:
        place = number % _FINE_STEPS
        known = self._numbers[place] == number
        return self._sums[place] / self._counts[place] if known else math.nan
