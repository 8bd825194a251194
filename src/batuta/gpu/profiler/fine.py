"""How busy a GPU was several times a second: drivers keep such samples, and iterations are often so short."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from batuta.gpu.profiler.figures import Floats

FINE_S: Final = 0.2
FINE_KEPT_S: Final = 60.0
_KEPT: Final = round(FINE_KEPT_S / FINE_S)
_FEWEST: Final = 100
_KNOWN: Final = 2 / 3


class FineSignal:
    """The last minute of one GPU, in steps of a fifth of a second."""

    __slots__ = ("_counts", "_numbers", "_sums")

    def __init__(self) -> None:
        self._numbers = [-1] * _KEPT
        self._sums = [0.0] * _KEPT
        self._counts = [0] * _KEPT

    def add(self, samples: Iterable[tuple[float, float]]) -> None:
        """Takes in times, in seconds, with how busy the GPU was."""
        for time_s, busy in samples:
            number = int(time_s / FINE_S)
            place = number % _KEPT
            if self._numbers[place] != number:
                self._numbers[place], self._sums[place], self._counts[place] = number, 0.0, 0
            self._sums[place] += busy
            self._counts[place] += 1

    def signal(self, time_s: float) -> Floats | None:
        """The last so many seconds, the oldest first; None where larger parts of them are not known."""
        last, wanted = max(self._numbers), min(round(time_s / FINE_S), _KEPT)
        signal = np.array([self._at(number) for number in range(last - wanted + 1, last + 1)])
        known = ~np.isnan(signal)
        if last < 0 or wanted < _FEWEST or known.mean() < _KNOWN:
            return None
        # A driver that samples more slowly than this leaves holes: what was last known holds until the next.
        places = np.maximum.accumulate(np.where(known, np.arange(wanted), 0))
        return signal[places]

    def _at(self, number: int) -> float:
        place = number % _KEPT
        known = self._numbers[place] == number
        return self._sums[place] / self._counts[place] if known else math.nan
