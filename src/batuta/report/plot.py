"""The parts that all charts are made of: the frame, axes, legends, step lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.report.axis import Axis
from batuta.report.markup import escape, join, leaf, number, shorten, tag

FULL = 1120
"""Width of a chart that takes the whole page, in pixels of its own."""
HALF = 548
"""Width of one of two charts side by side."""
CHARACTER = 6.9
"""Mean width of a character of a label; there is nobody to measure it when the report is made."""


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


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    label: str
    style: str
    """CSS classes of the colour."""
    series: str = ""
    """The lines that it stands for (their data-series), when they can be switched on and off."""


def svg(
    key: str, width: float, height: float, title: str, description: str, *body: str, **attributes: object
) -> str:
    """A picture with a name and a description for those who do not see it."""
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


def x_axis(axis: Axis, area: Area) -> str:
    """Grid lines, tick labels and title below the area."""
    parts = [_grid(axis, area, upright=True)]
    parts += [
        label(axis.px(tick.value), area.bottom + 17, tick.label, "tick mid")
        for tick in axis.ticks
        if tick.label
    ]
    parts.append(line(area.left, area.bottom, area.right, area.bottom, "axis"))
    parts.append(label((area.left + area.right) / 2, area.bottom + 36, axis.title, "axis-title mid"))
    return join(parts)


def y_axis(axis: Axis, area: Area) -> str:
    """Grid lines, tick labels left of the area, title turned upright."""
    parts = [_grid(axis, area, upright=False)]
    parts += [
        label(area.left - 7, axis.px(tick.value) + 4, tick.label, "tick end")
        for tick in axis.ticks
        if tick.label
    ]
    widest = max((len(tick.label) for tick in axis.ticks), default=0)
    x, y = area.left - 16 - widest * CHARACTER, (area.top + area.bottom) / 2
    turn = f"rotate(-90 {number(x)} {number(y)})"
    parts.append(label(x, y, axis.title, "axis-title mid", transform=turn))
    return join(parts)


def _grid(axis: Axis, area: Area, *, upright: bool) -> str:
    fine: list[str] = []
    strong: list[str] = []
    for tick in axis.ticks:
        at = number(axis.px(tick.value))
        d = (
            f"M{at} {number(area.top)}V{number(area.bottom)}"
            if upright
            else f"M{number(area.left)} {at}H{number(area.right)}"
        )
        (strong if tick.label else fine).append(d)
    return join(
        leaf("path", d=join(ds), class_=name) for ds, name in ((fine, "grid fine"), (strong, "grid")) if ds
    )


def legend(
    keys: Sequence[Key], left: float, top: float, right: float, *, swatch: str = "line"
) -> tuple[str, float]:
    """Keys in as many rows as they need, and the height of that."""
    parts, x, y = [], left, top
    for key in keys:
        text = shorten(key.label, 28)
        wide = 34 + len(text) * CHARACTER
        if x > left and x + wide > right:
            x, y = left, y + 20
        mark = (
            leaf("path", d=f"M{number(x)} {number(y + 7)}h20", class_="stroke")
            if swatch == "line"
            else leaf("rect", x=x, y=y + 1.5, width=12.0, height=11.0, rx=2.0, class_="fill")
        )
        name = label(x + (26 if swatch == "line" else 18), y + 11, text, "key-text")
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
