"""The parts of all charts: axes, legends, step lines, colours, and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.report.formatting import DAY, HOUR, MINUTE, SECOND, TimeUnit, escape, join, leaf, number, shorten, tag


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
    kind: str = "number"  # how a tooltip shows its values: number, whole, percent, seconds
    unit: TimeUnit = SECOND  # of the tick labels, when it is an axis of time in one unit

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
    high: float, px: tuple[float, float], title: str, *, low: float = 0.0, count: int = 5, kind: str = "number"
) -> Axis:
    """A linear axis that ends at a tick."""
    # Rounding to a tick must not leave the range of floats, above or below.
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
    unit = next((unit for unit in (DAY, HOUR, MINUTE) if step >= unit.seconds), SECOND)
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
    return replace(axis, ticks=_drop_overlapping(axis, marks))


_LOG_TIMES: tuple[tuple[float, TimeUnit, int], ...] = (
    *((value, SECOND, 0) for value in (0.001, 0.01, 0.1, 1, 10)),
    *((value, SECOND, 2) for value in (3, 30)),
    *((value * 60, MINUTE, rank) for value, rank in ((1, 0), (3, 2), (10, 1), (30, 2))),
    *((value * 3600, HOUR, rank) for value, rank in ((1, 0), (3, 2), (8, 1))),
    *((value * 86400, DAY, rank) for value, rank in ((1, 0), (3, 2), (10, 1), (30, 2), (100, 1), (300, 2), (1000, 1))),
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
        marks = [(rank, Tick(value, f"{_plain(value / unit.seconds)} {unit.name}")) for value, unit, rank in inside]
    axis = Axis(low, high, *px, (), title, log=True, kind="seconds")
    return replace(axis, ticks=_drop_overlapping(axis, marks))


def _drop_overlapping(axis: Axis, marks: list[tuple[int, Tick]]) -> tuple[Tick, ...]:
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
    fitting = (float(step) for step in _TIME_STEPS if step >= rough_s * (1 - 1e-9))
    return next(fitting, 86400 * nice_step(rough_s / 86400))


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """Return two positive, distinct ends for any data."""
    if not (math.isfinite(low) and math.isfinite(high) and high > 0):
        return 0.1, 10.0
    low = max(low, high * 1e-9, 1e-9)
    high = max(high, low)
    return (low, high) if high > low * 1.05 else (low / 1.5, high * 1.5)


def _plain(value: float) -> str:
    """A tick's number without the dust of its multiplication: 0.3, 2.5, 12,000."""
    return f"{float(f'{value:.6g}'):,.10f}".rstrip("0").rstrip(".")


FULL = 1120  # width of a chart that takes the whole page, in pixels of its own
HALF = 548  # width of one of two charts side by side
CHARACTER = 6.9  # mean width of a character of a label; fonts cannot be measured when the report is made


@dataclass(frozen=True, slots=True)
class Area:
    """Where the data goes: the rectangle inside the axes."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def x(self) -> tuple[float, float]:
        return self.left, self.right

    @property
    def y(self) -> tuple[float, float]:
        """From the bottom upwards, as values grow."""
        return self.bottom, self.top


def hover_data(x: Axis, y: Axis, area: Area) -> dict[str, str]:
    """Attributes from which the tooltip script tells the values under the pointer."""
    place = f"{area.left:g} {area.top:g} {area.right:g} {area.bottom:g}"
    return {"data_x": x.describe(), "data_y": y.describe(), "data_area": place}


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    label: str
    style: str  # CSS classes of the colour
    series: str = ""  # the lines that it stands for (their data-series), when they can be switched on and off


def svg(key: str, width: float, height: float, title: str, description: str, *body: str, **attributes: object) -> str:
    """Return a chart with a title and a description for screen readers."""
    return tag(
        "svg",
        tag("title", escape(title), id=f"{key}-title"),
        tag("desc", escape(description), id=f"{key}-desc"),
        *body,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        **attributes,
    )


def label(x: float, y: float, text: str, style: str = "", **attributes: object) -> str:
    return tag("text", escape(text), x=float(x), y=float(y), class_=style or None, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return leaf("path", d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", class_=style)


def series(curve: str, style: str, key: str, name: str, **attributes: object) -> str:
    """Return a curve that a legend can switch off, and that a tooltip can name."""
    return tag("g", curve, class_=f"series {style}", data_series=key, data_label=shorten(name, 40), **attributes)


def x_axis(axis: Axis, area: Area) -> str:
    """Grid lines, tick labels and title below the area."""
    labels = (label(axis.px(tick.value), area.bottom + 17, tick.label, "tick mid") for tick in axis.ticks if tick.label)
    ground = line(area.left, area.bottom, area.right, area.bottom, "axis")
    title = label((area.left + area.right) / 2, area.bottom + 36, axis.title, "axis-title mid")
    return _grid(axis, area, upright=True) + join(labels) + ground + title


def y_axis(axis: Axis, area: Area) -> str:
    """Grid lines, tick labels left of the area, title turned upright."""
    named = [tick for tick in axis.ticks if tick.label]
    labels = (label(area.left - 7, axis.px(tick.value) + 4, tick.label, "tick end") for tick in named)
    widest = max((len(tick.label) for tick in named), default=0)
    x, y = area.left - 16 - widest * CHARACTER, (area.top + area.bottom) / 2
    title = label(x, y, axis.title, "axis-title mid", transform=f"rotate(-90 {number(x)} {number(y)})")
    return _grid(axis, area, upright=False) + join(labels) + title


def _grid(axis: Axis, area: Area, *, upright: bool) -> str:
    lines: dict[str, str] = {"grid fine": "", "grid": ""}
    for tick in axis.ticks:
        at = number(axis.px(tick.value))
        across = f"M{number(area.left)} {at}H{number(area.right)}"
        path = f"M{at} {number(area.top)}V{number(area.bottom)}" if upright else across
        lines["grid" if tick.label else "grid fine"] += path
    return join(leaf("path", d=path, class_=style) for style, path in lines.items() if path)


def legend(keys: Sequence[Key], left: float, top: float, right: float) -> tuple[str, float]:
    """Keys in as many rows as they need, and the height of that."""
    parts, x, y = [], left, top
    for key in keys:
        text = shorten(key.label, 28)
        wide = 34 + len(text) * CHARACTER
        if x > left and x + wide > right:
            x, y = left, y + 20
        mark = leaf("path", d=f"M{number(x)} {number(y + 7)}h20", class_="stroke")
        name = label(x + 26, y + 11, text, "key-text")
        parts.append(tag("g", mark, name, class_=f"key {key.style}", data_for=key.series or None))
        x += wide
    return join(parts), y + 20 - top if keys else 0.0


def step_path(xs: FloatArray, ys: FloatArray) -> str:
    """Path data of a step function: level from each x until the next, then up or down.

    Steps are relative, to a tenth of a pixel; rounding comes before the differences, so it never adds up.
    """
    if not len(xs):
        return ""
    x10, y10 = np.rint(xs * 10).astype(np.int64).tolist(), np.rint(ys * 10).astype(np.int64).tolist()
    parts = [f"M{_tenth(x10[0])} {_tenth(y10[0])}"]
    x, y = x10[0], y10[0]
    for next_x, next_y in zip(x10[1:], y10[1:], strict=True):
        if next_y == y:
            continue
        if next_x != x:
            parts.append(f"h{_tenth(next_x - x)}")
        parts.append(f"v{_tenth(next_y - y)}")
        x, y = next_x, next_y
    if x10[-1] != x:
        parts.append(f"h{_tenth(x10[-1] - x)}")
    return join(parts)


def _tenth(tenths: int) -> str:
    whole, rest = divmod(abs(tenths), 10)
    sign = "-" if tenths < 0 else ""
    # ".5" and not "0.5": a report holds tens of thousands of these.
    return f"{sign}{whole if whole or not rest else ''}{f'.{rest}' if rest else ''}"


# The seven hues are near those of Okabe and Ito. Lightness and chroma were searched for, per theme, to make
# the least distance between any two as large as possible (OKLab; normal vision, and simulated protanopia,
# deuteranopia and tritanopia) while each has a contrast of 3:1 with the paper. Dashes distinguish more than
# eight series.
SERIES = 8  # colours of policies and applications. Number 0 is neutral: the baseline, or all others.
SIZES = 7  # shades of GPU counts, one per doubling

_ROLES = "paper card ink muted line axis accent good good-ink warn wait"


def _theme(roles: str, series: str, sizes: str) -> dict[str, str]:
    """Return colours by CSS variable: roles of the page, `p0`… of series, `z0`… of GPU counts."""
    colours = dict(zip(_ROLES.split(), roles.split(), strict=True))
    colours |= {f"p{k}": colour for k, colour in enumerate(series.split())}
    return colours | {f"z{k}": colour for k, colour in enumerate(sizes.split())}


LIGHT = _theme(
    "#ffffff #f6f7f9 #1a1d23 #565e6b #dfe3e8 #8b94a1 #0b57d0 #d5f0dc #0a5a2a #fff3d6 #b9c0ca",
    "#6b7482 #0a3cb4 #f05a0a #17a07a #a86cf5 #77134d #7a5405 #0b7398",
    "#c4cf3a #7cc257 #2fa981 #24808c #33598a #452f74 #2a0a3d",
)

DARK = _theme(
    "#14181f #1c222b #e8ebf0 #a4adba #2e3540 #6d7786 #8ab4f8 #12452a #a9efc2 #453714 #4a5361",
    "#98a2b0 #4a7df0 #fe7010 #45b293 #bc98ff #bb4f9a #fad03a #7aeafa",
    "#575c9e #3f76a3 #2f9293 #3bad7d #7cc657 #c0da3c #fdf05a",
)

_LARGEST = np.array([1, 2, 4, 8, 16, 32])
_DASHES = ("", "7 3", "2 3")


def theme_css() -> str:
    """Return both themes as CSS variables, and the classes that use them."""
    light, dark = (";".join(f"--{name}:{value}" for name, value in theme.items()) for theme in (LIGHT, DARK))
    rules = [
        f":root{{color-scheme:light;{light}}}",
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}",
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}",
        # Paper is white, whatever the screen was.
        f"@media print{{:root:root:root{{color-scheme:light;{light}}}}}",
        *(f".p{k}{{color:var(--p{k})}}" for k in range(SERIES)),
        *(f".z{k}{{color:var(--z{k})}}" for k in range(SIZES)),
        *(f".dash{k} .stroke{{stroke-dasharray:{dash}}}" for k, dash in enumerate(_DASHES) if dash),
    ]
    return "\n".join(rules)


def series_class(index: int) -> str:
    """The CSS classes of a series: 0 is neutral; when the colours are used up they come again, dashed."""
    if index < SERIES:
        return f"p{index}"
    again = index - SERIES
    return f"p{1 + again % (SERIES - 1)} dash{1 + again // (SERIES - 1) % (len(_DASHES) - 1)}"


def size_shade(gpus: int) -> int:
    return int(size_shades(np.array([gpus], dtype=np.float64))[0])


def size_shades(gpus: FloatArray) -> IntArray:
    """The shades of GPU counts: 1, 2, 3–4, 5–8, 9–16, 17–32, more."""
    return np.searchsorted(_LARGEST, gpus, side="left").astype(np.int64)


SIZE_LABELS = ("1", "2", "3–4", "5–8", "9–16", "17–32", "33+")


def thin_steps(time: FloatArray, value: FloatArray, limit: int) -> tuple[FloatArray, FloatArray]:
    """The step function in at most `limit` points; first, last, least, greatest of each stretch are kept."""
    # Only changes and both ends are needed to draw a step function.
    kept = np.ones(len(value), dtype=np.bool_)
    if len(value) > 2:
        kept[1:-1] = value[1:-1] != value[:-2]
    time, value = time[kept], value[kept]
    if len(time) <= limit or time[-1] <= time[0]:
        # Without a span there is one place to draw, whatever happened there.
        return (time[-limit:], value[-limit:]) if len(time) > limit else (time, value)
    stretches = max(limit // 4, 1)
    place = (time - time[0]) * (stretches / (time[-1] - time[0]))
    stretch: IntArray = np.minimum(place.astype(np.int64), stretches - 1)
    by_value = np.lexsort((np.arange(len(time)), value, stretch))
    begins: BoolArray = np.r_[True, np.diff(stretch) > 0]
    ends: BoolArray = np.r_[begins[1:], True]
    # Sorted by stretch first, so a stretch begins and ends at the same positions in both orders.
    chosen = np.unique(np.r_[np.flatnonzero(begins), np.flatnonzero(ends), by_value[begins], by_value[ends]])
    return time[chosen], value[chosen]


def mean_per_bin(time: FloatArray, value: FloatArray, edges: FloatArray) -> FloatArray:
    """The time-weighted mean of a step function between neighbouring edges; it is 0 outside of its span."""
    if len(time) < 2:
        return np.zeros(len(edges) - 1)
    area = np.r_[0.0, np.cumsum(value[:-1] * np.diff(time))]
    means: FloatArray = np.diff(np.interp(edges, time, area)) / np.diff(edges)
    return means


def cumulative_shares(values: FloatArray, total: int, limit: int) -> tuple[FloatArray, FloatArray]:
    """Points (value, share of `total` that is at most this value), at most `limit` of them, ends included."""
    ordered = np.sort(values)
    shares = np.arange(1, len(ordered) + 1) / max(total, 1)
    if len(ordered) > limit:
        chosen = np.unique(np.linspace(0, len(ordered) - 1, limit).round().astype(np.int64))
        ordered, shares = ordered[chosen], shares[chosen]
    return ordered, shares


def step_sum(times: FloatArray, changes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The step function that starts at 0 and changes by so much at each of these times, in any order."""
    moments, place = np.unique(times, return_inverse=True)
    return moments, np.cumsum(np.bincount(place, weights=changes, minlength=len(moments)))
