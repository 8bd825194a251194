"""Numbers as people read them: 3.4 min, 1.42 h, 87 %, 12,300."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

UNKNOWN = "–"
"""Stands for a value that does not exist."""


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit that durations are shown in."""

    name: str
    seconds: float


SECOND = TimeUnit("s", 1.0)
MINUTE = TimeUnit("min", 60.0)
HOUR = TimeUnit("h", 3600.0)
DAY = TimeUnit("d", 86400.0)


def unit_for(seconds: float) -> TimeUnit:
    """The unit in which a duration is a number of two or three digits; hours last long, as in papers."""
    if not seconds >= 120:
        return SECOND
    if seconds < 2 * 3600:
        return MINUTE
    return HOUR if seconds < 5 * 86400 else DAY


def duration(seconds: float) -> str:
    """A duration in its own unit, to three digits."""
    if not math.isfinite(seconds):
        return UNKNOWN
    unit = unit_for(abs(seconds))
    return f"{significant(seconds / unit.seconds)} {unit.name}"


def significant(value: float, digits: int = 3) -> str:
    """A number to so many digits, never in scientific notation; whole ones stay whole."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == round(value):
        return f"{value:,.0f}"
    # Rounding first: 9.999 has one digit before the point until it becomes 10.0.
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def percent(share: float, decimals: int = 0) -> str:
    return f"{share * 100:.{decimals}f} %" if math.isfinite(share) else UNKNOWN


def times(ratio: float) -> str:
    """A factor: 0.70×, 1.42×, 12.3×."""
    if not math.isfinite(ratio):
        return UNKNOWN
    return f"{ratio:.2f}×" if ratio < 10 else f"{significant(ratio)}×"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 job, 12,000 jobs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def decimals_for(values: Iterable[float]) -> int:
    """How many decimals a column needs so that its largest value has three digits and its smallest one."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return 0
    if all(size == int(size) for size in sizes) and max(sizes) >= 3:
        return 0
    largest = 2 - math.floor(math.log10(max(sizes)))
    smallest = -math.floor(math.log10(min(sizes)))
    return min(max(largest, min(smallest, 2), 0), 3)


def fixed(value: float, decimals: int) -> str:
    """A cell of a column with so many decimals."""
    if not math.isfinite(value):
        return UNKNOWN
    shown = f"{value:,.{decimals}f}"
    # A zero is a statement; what was only rounded away is not one.
    if value > 0 and float(shown.replace(",", "")) == 0:
        return f"<{10.0**-decimals:.{decimals}f}"
    return shown
