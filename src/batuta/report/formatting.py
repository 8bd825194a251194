"""Numbers as text (3.4 min, 87 %, 12,300), and HTML and SVG; all user input goes through `escape` here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

UNKNOWN = "–"  # stands for a value that does not exist


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of durations."""

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
    if not math.isfinite(value):
        return UNKNOWN
    shown = f"{value:,.{decimals}f}"
    # A zero is a statement; what was only rounded away is not one.
    if value > 0 and float(shown.replace(",", "")) == 0:
        return f"<{10.0**-decimals:.{decimals}f}"
    return shown


# Not allowed in HTML at all: control characters, and halves of surrogate pairs (file names can bring them).
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def escape(value: object) -> str:
    """Return the value as escaped text, for content and quoted attributes."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(value)), quote=True)


def shorten(value: str, limit: int) -> str:
    """At most `limit` characters; what was cut shows as …"""
    return value if len(value) <= limit else value[: limit - 1] + "…"


def tag(name: str, *content: str, **attributes: object) -> str:
    """An element. Content is markup; attributes are escaped.

    `class_` is class, `data_x` is data-x; None and False are left out.
    """
    return f"{_open(name, attributes)}>{''.join(content)}</{name}>"


def leaf(name: str, **attributes: object) -> str:
    return f"{_open(name, attributes)}/>"


def scrolling_table(caption: str, *content: str, **attributes: object) -> str:
    """A table that scrolls inside the page, by keyboard too; its caption stays in view."""
    table = tag("table", tag("caption", tag("span", escape(caption))), *content, **attributes)
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="table")


def html_page(title: str, style: str, content_policy: str, body: str) -> str:
    """A whole page; `content_policy` is added to a policy that forbids everything but inline styles."""
    policy = f"default-src 'none'; style-src 'unsafe-inline'{content_policy}"
    head = tag(
        "head",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        tag("title", escape(f"{title} – Batuta")),
        tag("style", style),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return resources.files("batuta.report").joinpath(name).read_text("utf-8")


def join(parts: Iterable[str]) -> str:
    return "".join(parts)


def number(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"


def _open(name: str, attributes: dict[str, object]) -> str:
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(f" {key}")
        else:
            parts.append(f' {key}="{number(value) if isinstance(value, float) else escape(value)}"')
    return "".join(parts)
