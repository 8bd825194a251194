"""From values to pixels, with ticks at numbers that people would choose."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.report.units import DAY, HOUR, MINUTE, SECOND, TimeUnit


@dataclass(frozen=True, slots=True)
class Tick:
    """A marked value of an axis; without a label it is a fine line only."""

    value: float
    label: str


_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Axis:
    """A mapping of values to pixels, its ticks and its title (with the unit)."""

    low: float
    high: float
    start_px: float
    end_px: float
    ticks: tuple[Tick, ...]
    title: str
    log: bool = False
    kind: str = "number"
    """How a tooltip shows its values: number, whole, percent, seconds."""
    unit: TimeUnit = SECOND
    """Of the tick labels, when it is an axis of time in one unit."""

    def px(self, value: float) -> float:
        return float(self.pxs(np.array([value]))[0])

    def pxs(self, values: FloatArray) -> FloatArray:
        """Where values lie; those beyond the ends lie on them."""
        clipped = np.clip(values, self.low, self.high)
        if self.log:
            share = np.log(clipped / self.low) / math.log(self.high / self.low)
        else:
            share = (clipped - self.low) / (self.high - self.low)
        places: FloatArray = self.start_px + share * (self.end_px - self.start_px)
        return places

    def describe(self) -> str:
        """What the tooltip script needs to turn pixels into values again."""
        ends = f"{self.low!r} {self.high!r} {self.start_px:g} {self.end_px:g}"
        return f"{'log' if self.log else 'lin'} {ends} {self.kind}"


def number_axis(
    high: float,
    px: tuple[float, float],
    title: str,
    *,
    low: float = 0.0,
    count: int = 5,
    kind: str = "number",
) -> Axis:
    """A linear axis that ends at a tick."""
    # What nothing real reaches: rounding to a tick must not leave the range of floats, above or below.
    high = min(high, 1e300) if math.isfinite(high) and high - low > _TINY else low + 1
    step = nice_step((high - low) / count)
    if kind == "whole":
        step = 2.0 if step == 2.5 else max(step, 1.0)
    steps = math.ceil((high - low) / step - 1e-9)
    ticks = tuple(Tick(low + k * step, _plain(low + k * step)) for k in range(steps + 1))
    return Axis(low, low + steps * step, *px, ticks, title, kind=kind)


def share_axis(px: tuple[float, float], title: str, count: int = 5) -> Axis:
    """A linear axis of 0 to 100 %."""
    ticks = tuple(Tick(k / count, f"{100 * k // count} %") for k in range(count + 1))
    return Axis(0.0, 1.0, *px, ticks, title, kind="percent")


def time_axis(high_s: float, px: tuple[float, float], title: str, *, count: int = 8) -> Axis:
    """A linear axis of time from 0, in one unit that is named in the title; it ends where the data ends."""
    high_s = high_s if math.isfinite(high_s) and high_s > _TINY else 1.0
    step = _nice_time_step(high_s / count)
    unit = _unit_of_step(step)
    steps = range(math.floor(high_s / step + 1e-9) + 1)
    ticks = tuple(Tick(k * step, _plain(k * step / unit.seconds)) for k in steps)
    return Axis(0.0, high_s, *px, ticks, f"{title} ({unit.name})", kind="seconds", unit=unit)


def log_axis(low: float, high: float, px: tuple[float, float], title: str) -> Axis:
    """A logarithmic axis of plain numbers; powers of ten are labelled first, then 5, 2, others with room."""
    low, high = _log_ends(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    marks = []
    for decade in decades:
        for digit, rank in ((1, 0), (5, 1), (2, 2), (3, 3), (7, 4), (4, 5), (6, 5), (8, 6), (9, 7)):
            value = digit * 10.0**decade
            if low * (1 - 1e-9) <= value <= high * (1 + 1e-9) and (span < 6 or digit == 1):
                shown = digit in (1, 2, 5) or span < 1
                marks.append((rank, Tick(value, _plain(value) if shown else "")))
    if sum(bool(tick.label) for _, tick in marks) < 2:
        step = nice_step((high - low) / 4)
        steps = range(math.ceil(low / step), math.floor(high / step) + 1)
        marks = [(0, Tick(k * step, _plain(k * step))) for k in steps]
    axis = Axis(low, high, *px, (), title, log=True)
    return replace(axis, ticks=_with_room(axis, marks))


_LOG_TIMES: tuple[tuple[float, TimeUnit, int], ...] = (
    *((value, SECOND, 0) for value in (0.001, 0.01, 0.1, 1, 10)),
    *((value, SECOND, 2) for value in (3, 30)),
    *((value * 60, MINUTE, rank) for value, rank in ((1, 0), (3, 2), (10, 1), (30, 2))),
    *((value * 3600, HOUR, rank) for value, rank in ((1, 0), (3, 2), (8, 1))),
    *(
        (value * 86400, DAY, rank)
        for value, rank in ((1, 0), (3, 2), (10, 1), (30, 2), (100, 1), (300, 2), (1000, 1))
    ),
)


def log_time_axis(low_s: float, high_s: float, px: tuple[float, float], title: str) -> Axis:
    """A logarithmic axis of durations with ticks such as 30 s, 1 min, 1 h, 1 d, as far as there is room."""
    low, high = _log_ends(max(low_s, 0.001), high_s)
    inside = [one for one in _LOG_TIMES if low * 0.999 <= one[0] <= high * 1.001]
    if len(inside) < 2:
        # Less than a factor of three: one unit, plain numbers.
        unit = next((unit for unit in (DAY, HOUR, MINUTE) if low >= 2 * unit.seconds), SECOND)
        step = nice_step((high - low) / unit.seconds / 4)
        numbers = range(math.ceil(low / unit.seconds / step), math.floor(high / unit.seconds / step) + 1)
        marks = [(0, Tick(k * step * unit.seconds, f"{_plain(k * step)} {unit.name}")) for k in numbers]
    else:
        marks = [
            (rank, Tick(value, f"{_plain(value / unit.seconds)} {unit.name}")) for value, unit, rank in inside
        ]
    axis = Axis(low, high, *px, (), title, log=True, kind="seconds")
    return replace(axis, ticks=_with_room(axis, marks))


def _with_room(axis: Axis, marks: list[tuple[int, Tick]]) -> tuple[Tick, ...]:
    """The ticks in order; labels that would touch one of a better rank are left out."""
    taken: list[tuple[float, float]] = []
    ticks = []
    for _, tick in sorted(marks, key=lambda mark: (mark[0], mark[1].value)):
        half = len(tick.label) * 3.7 + 4
        left, right = axis.px(tick.value) - half, axis.px(tick.value) + half
        free = all(right < other_left or left > other_right for other_left, other_right in taken)
        if tick.label and free:
            taken.append((left, right))
        ticks.append(tick if free else Tick(tick.value, ""))
    return tuple(sorted(ticks, key=lambda tick: tick.value))


def nice_step(rough: float) -> float:
    """The least of 1, 2, 2.5, 5 × a power of ten that is not below."""
    if not (math.isfinite(rough) and rough > 0):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in (1, 2, 2.5, 5) if step * power >= rough * (1 - 1e-9)), 10 * power)


_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * m for m in (1, 2, 5, 10, 15, 30)),
    *(3600 * h for h in (1, 2, 3, 6, 12)),
    *(86400 * d for d in (1, 2, 5, 7, 14, 30)),
)


def _nice_time_step(rough_s: float) -> float:
    if rough_s < 1:
        return nice_step(rough_s)
    step = next((float(step) for step in _TIME_STEPS if step >= rough_s * (1 - 1e-9)), None)
    return step if step is not None else 86400 * nice_step(rough_s / 86400)


def _unit_of_step(step: float) -> TimeUnit:
    return next((unit for unit in (DAY, HOUR, MINUTE) if step >= unit.seconds), SECOND)


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """Ends that are positive and apart, whatever the data."""
    if not (math.isfinite(low) and math.isfinite(high) and high > 0):
        return 0.1, 10.0
    low = max(low, high * 1e-9, 1e-9)
    high = max(high, low)
    return (low, high) if high > low * 1.05 else (low / 1.5, high * 1.5)


def _plain(value: float) -> str:
    """A tick's number without the dust of its multiplication: 0.3, 2.5, 12,000."""
    return f"{float(f'{value:.6g}'):,.10f}".rstrip("0").rstrip(".")
