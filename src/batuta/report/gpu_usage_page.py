"""The usage report as one HTML page that needs nothing but a browser: no network and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from batuta.report.formatting import UNKNOWN, asset, escape, html_page, leaf, percent, scrolling_table, significant, tag
from batuta.report.plot import number_axis, theme_css

_HOUR_S = 3600.0
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 1100.0, 280.0, 76.0, 30.0, 40.0
_WIDEST_BAR, _WIDEST_STEP = 64.0, 92.0


class Category(NamedTuple):
    """One of the categories that add up to the capacity."""

    key: str
    name: str
    style: str
    meaning: str


CATEGORIES = (
    Category("used_gpu_s", "Used", "p1", "jobs kept GPUs busy, and kept their progress"),
    Category("unused_gpu_s", "Not busy", "p7", "jobs held GPUs that were not busy, as measured"),
    Category("restarting_gpu_s", "Restarts", "p2", "jobs held GPUs while they started or were resized"),
    Category("lost_gpu_s", "Lost work", "p5", "progress after the last checkpoint, thrown away"),
    Category("fragmented_gpu_s", "Fragmented", "p6", "free, but of no use to the smallest job that waited"),
    Category("idle_gpu_s", "Idle", "p0", "free, and no job waited for it"),
    Category("unavailable_gpu_s", "Out of service", "p4", "ill, cordoned or used by others"),
)
WAITING = Category("waiting_gpu_s", "Waited for", "p3", "asked for and not had; no part of the capacity")
_HELD = CATEGORIES[:4]


def render_usage(report: Mapping[str, Any]) -> str:
    """Return the page of a usage report of the API; the same report gives the same bytes."""
    total = report["total"]
    title, capacity = "There were no GPUs", total["capacity_gpu_s"]
    if capacity:
        title = f"{percent(total['used_gpu_s'] / capacity)} of {_hours(capacity)} GPU-hours were used"
    span = " to ".join(f"{datetime.fromtimestamp(report[key], UTC):%Y-%m-%d %H:%M}" for key in ("from_s", "to_s"))
    header = tag(
        "header",
        tag("p", tag("b", "Batuta"), escape(f" · {span}"), class_="kicker"),
        tag("h1", escape(title)),
        *(tag("p", escape(note), class_="warning", role="note") for note in report["notes"]),
    )
    groups = _groups("queue", report["queues"]) + _groups("user", report["users"])
    main = tag("main", _tiles(total), _days(report), groups, _queues_by_day(report["days"]))
    return html_page(title, theme_css() + asset("style.css"), "", tag("body", header, main))


def _tiles(total: Mapping[str, float]) -> str:
    capacity = total["capacity_gpu_s"]
    tiles = [
        tag(
            "div",
            tag("span", tag("span", class_=f"swatch {kind.style}"), escape(kind.name), class_="tile-name"),
            tag("b", escape(_hours(total[kind.key]))),
            tag("span", escape(f"GPU-hours{_of(total[kind.key], capacity, kind)}")),
            tag("span", escape(kind.meaning), class_="tile-note"),
            class_="tile",
        )
        for kind in (*CATEGORIES, WAITING)
    ]
    return tag("div", *tiles, class_="tiles many")


def _of(part: float, capacity: float, kind: Category) -> str:
    return f", {percent(part / capacity, 1)}" if capacity and kind is not WAITING else ""


def _days(report: Mapping[str, Any]) -> str:
    days = report["days"]
    if not days:
        return tag("p", "Nothing was there in this time.")
    head = ("Day (UTC)", "GPU-hours", *(kind.name for kind in (*CATEGORIES, WAITING)))
    rows = [(day["day"], *_day_cells(day)) for day in days]
    rows.append(("All", *_day_cells(report["total"])))
    caption = "Shares of all GPU-hours of the day; what jobs waited for in GPU-hours."
    picture = tag("div", _bars(days), class_="plot", tabindex=0, role="region", aria_label="GPU-hours by day")
    return tag("h2", "By day") + tag("figure", picture) + _table(caption, head, rows)


def _day_cells(day: Mapping[str, float]) -> Sequence[str]:
    capacity = day["capacity_gpu_s"]
    shares = [percent(day[kind.key] / capacity, 1) if capacity else UNKNOWN for kind in CATEGORIES]
    return (_hours(capacity), *shares, _hours(day[WAITING.key]))


def _bars(days: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each day, stacked from used to unallocated."""
    most = max(float(day["capacity_gpu_s"]) for day in days) / _HOUR_S
    y_axis = number_axis(most, (_HEIGHT - _BOTTOM, _TOP), "GPU-hours", count=4)
    step = min(_WIDEST_STEP, (_WIDTH - _LEFT) / len(days))
    width = min(_WIDEST_BAR, 0.8 * step)
    every = max(1, -(-len(days) // 12))
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.px(tick.value)
        parts.append(leaf("line", x1=_LEFT, x2=_WIDTH, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", escape(tick.label), x=_LEFT - 8.0, y=y + 4.0, class_="tick end"))
    parts.append(tag("text", y_axis.title, x=_LEFT - 8.0, y=12.0, class_="axis-title end"))
    for number, day in enumerate(days):
        x, y = _LEFT + step * (number + 0.5) - width / 2, _HEIGHT - _BOTTOM
        for kind in CATEGORIES:
            height = y_axis.px(0.0) - y_axis.px(float(day[kind.key]) / _HOUR_S)
            if height < 0.05:
                continue
            y -= height
            tip = f"{day['day']}: {kind.name} {_hours(day[kind.key])} GPU-hours"
            bar = {"x": x, "y": y, "width": width, "height": height, "class_": kind.style}
            parts.append(tag("rect", tag("title", escape(tip)), fill="currentColor", **bar))
        if number % every == 0:
            middle = {"x": x + width / 2, "y": _HEIGHT - _BOTTOM + 18.0, "text_anchor": "middle"}
            parts.append(tag("text", escape(day["day"][5:]), class_="tick", **middle))
    title = tag("title", "GPU-hours by day and by what became of them")
    return tag("svg", title, *parts, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img")


def _groups(key: str, groups: Sequence[Mapping[str, Any]]) -> str:
    rows = [(own[key] or "–", own) for own in groups]
    return _usage_table(f"By {key}", key.capitalize(), f"GPU-hours of the jobs of each {key}.", rows)


def _queues_by_day(days: Sequence[Mapping[str, Any]]) -> str:
    """A table of queues by day, the newest day first; empty for a single day, which `_groups` shows."""
    rows = [(f"{day['day']} {own['queue']}", own) for day in reversed(days) for own in day["queues"]]
    caption = "GPU-hours of the jobs of each queue on each day."
    return _usage_table("By queue and day", "Day (UTC) and queue", caption, rows if len(days) > 1 else [])


def _usage_table(title: str, first: str, caption: str, groups: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    if not groups:
        return ""
    shown = (*_HELD, WAITING)
    rows = [(name, *(_hours(own[kind.key]) for kind in shown)) for name, own in groups]
    return tag("h2", title) + _table(caption, (first, *(kind.name for kind in shown)), rows)


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = [tag("th", escape(name), scope="col", class_=None if k else "name") for k, name in enumerate(head)]
    names = (tag("th", escape(first), scope="row", class_="name") for first, *_ in rows)
    cells = ([tag("td", escape(cell)) for cell in rest] for _, *rest in rows)
    body = [tag("tr", name, *own) for name, own in zip(names, cells, strict=True)]
    return scrolling_table(caption, tag("thead", tag("tr", *titles)), tag("tbody", *body))


def _hours(gpu_s: float) -> str:
    return significant(gpu_s / _HOUR_S)
