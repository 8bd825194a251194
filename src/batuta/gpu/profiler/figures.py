"""A stretch of samples in a few figures. Pure functions on arrays; what was not measured is NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

BUSY: Final = 0.05
"""A GPU that is used less than this does nothing: a monitor or a watchdog looked at it."""
_STEADY: Final = 0.02
_FEWEST: Final = 10
"""Samples below which nothing is called a plateau."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How a quantity went. `duty_cycle`: the share of samples in which there was work at all."""

    mean: float
    p95: float
    peak: float
    duty_cycle: float


def figures(values: Floats, busy: float = BUSY) -> Figures | None:
    """None where nothing was measured."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    return Figures(
        mean=float(known.mean()),
        p95=float(np.quantile(known, 0.95)),
        peak=float(known.max()),
        duty_cycle=float((known > busy).mean()),
    )


def mean_of(values: Floats) -> float | None:
    """The mean of what was measured; None where nothing was."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def memory_plateau_mib(memory_mib: Floats) -> float | None:
    """The level that memory has come to and stays at; None while it grows, shrinks or is not there yet.

    A level counts once the last quarter of the samples, and at least ten of them, stay within 2 % of it. A
    few samples apart from it do not matter: a checkpoint may take some memory for a moment.
    """
    known = memory_mib[~np.isnan(memory_mib)]
    tail = known[-max(_FEWEST, len(known) // 4) :]
    if len(tail) < _FEWEST:
        return None
    level = float(np.median(tail))
    if level <= 0.0:
        return None
    near = np.abs(tail - level) <= _STEADY * level
    halves = np.array_split(tail, 2)
    drift = abs(float(np.median(halves[1]) - np.median(halves[0])))
    return level if near.mean() >= 0.8 and drift <= _STEADY * level / 2 else None
