"""Strings of HTML and SVG. Whatever comes from a user goes through `escape` here, and nowhere else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# Not allowed in HTML at all: control characters, and halves of surrogate pairs (file names can bring them).
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def escape(value: object) -> str:
    """The value as text that means itself, in content and in quoted attributes."""
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
    """An SVG element without content."""
    return f"{_open(name, attributes)}/>"


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
