"""The gradient noise that jobs of one application have seen, by epoch and by the batch that it was seen at.

The noise is not the same at every batch: measured with a large one it is higher, so what one batch says of
another is wrong by the more, the further they are apart. What was seen at a batch is believed there.
"""

from __future__ import annotations

import math

import numpy as np

from batuta.backends.sim.goodput.efficiency import GradientStatistics
from batuta.core.arrays import FloatArray, IntArray


class SeenGradients:
    """Noise by epoch (as far as any job has come) and by doublings of the smallest batch."""

    __slots__ = ("_noise", "_seen", "version")

    def __init__(self, largest_scale: float) -> None:
        octaves = max(round(math.log2(max(largest_scale, 1.0))), 0) + 1
        self._seen: FloatArray = np.empty((0, octaves))
        """NaN where nobody was."""
        self._noise: FloatArray = np.empty((0, octaves))
        """The same, with what was seen nearest where nobody was."""
        self.version = 0
        """Grows with every change."""

    def __len__(self) -> int:
        """Epochs that were reached."""
        return len(self._noise)

    def note(self, epoch: int, scale: float, seen: GradientStatistics) -> None:
        """Takes in what a job has measured at a batch of `scale` times the smallest."""
        noise = noise_of(seen)
        octave = min(max(round(math.log2(scale)), 0), self._seen.shape[1] - 1)
        missing = epoch + 1 - len(self)
        if missing > 0:
            width = self._seen.shape[1]
            self._seen = np.concatenate((self._seen, np.full((missing, width), np.nan)))
            self._noise = np.concatenate((self._noise, np.full((missing, width), noise)))
        elif self._seen[epoch, octave] == noise:
            return
        self._seen[epoch, octave] = noise
        known = np.flatnonzero(np.isfinite(self._seen[epoch]))
        nearest: IntArray = np.abs(np.arange(self._seen.shape[1])[:, None] - known).argmin(axis=1)
        self._noise[epoch] = self._seen[epoch, known[nearest]]
        self.version += 1

    def gains(self, scale: FloatArray, epochs: slice = slice(None)) -> FloatArray:
        """Progress of one step at each scale, in steps of the smallest batch: a new first axis of epochs."""
        table = self._noise[epochs]
        most = table.shape[1] - 1
        low = np.clip(np.floor(np.log2(scale)).astype(np.int64), 0, most)
        part = np.clip(scale / 2.0**low - 1.0, 0.0, 1.0)
        noise = table[:, low] * (1.0 - part) + table[:, np.minimum(low + 1, most)] * part
        return gains_of(noise, scale)


def noise_of(seen: GradientStatistics) -> float:
    return seen.var / max(seen.sqr, 1e-30)


def gains_of(noise: FloatArray | float, scale: FloatArray) -> FloatArray:
    gains: FloatArray = (noise + 1.0) / (noise / scale + 1.0)
    return gains
