"""Colours that people with any kind of colour vision can tell apart, on light and on dark paper.

The seven hues are near those of Okabe and Ito. Lightness and chroma were searched for, per theme, to make the
least distance between any two as large as it gets (OKLab; normal vision, and simulated protanopia,
deuteranopia and tritanopia) while each has a contrast of 3:1 with the paper.
Dashes tell more than eight series apart.
"""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import FloatArray, IntArray

SERIES = 8
"""Colours of policies and applications. Number 0 is neutral: the baseline, or what is not named."""
SIZES = 7
"""Shades of GPU counts, one per doubling."""

LIGHT: dict[str, str] = {
    "paper": "#ffffff",
    "card": "#f6f7f9",
    "ink": "#1a1d23",
    "muted": "#565e6b",
    "line": "#dfe3e8",
    "axis": "#8b94a1",
    "accent": "#0b57d0",
    "good": "#d5f0dc",
    "good-ink": "#0a5a2a",
    "warn": "#fff3d6",
    "wait": "#b9c0ca",
    "p0": "#6b7482",
    "p1": "#0a3cb4",
    "p2": "#f05a0a",
    "p3": "#17a07a",
    "p4": "#a86cf5",
    "p5": "#77134d",
    "p6": "#7a5405",
    "p7": "#0b7398",
    "z0": "#c4cf3a",
    "z1": "#7cc257",
    "z2": "#2fa981",
    "z3": "#24808c",
    "z4": "#33598a",
    "z5": "#452f74",
    "z6": "#2a0a3d",
}

DARK: dict[str, str] = {
    "paper": "#14181f",
    "card": "#1c222b",
    "ink": "#e8ebf0",
    "muted": "#a4adba",
    "line": "#2e3540",
    "axis": "#6d7786",
    "accent": "#8ab4f8",
    "good": "#12452a",
    "good-ink": "#a9efc2",
    "warn": "#453714",
    "wait": "#4a5361",
    "p0": "#98a2b0",
    "p1": "#4a7df0",
    "p2": "#fe7010",
    "p3": "#45b293",
    "p4": "#bc98ff",
    "p5": "#bb4f9a",
    "p6": "#fad03a",
    "p7": "#7aeafa",
    "z0": "#575c9e",
    "z1": "#3f76a3",
    "z2": "#2f9293",
    "z3": "#3bad7d",
    "z4": "#7cc657",
    "z5": "#c0da3c",
    "z6": "#fdf05a",
}

_LARGEST = np.array([1, 2, 4, 8, 16, 32])
_DASHES = ("", "7 3", "2 3")


def css() -> str:
    """Both themes as CSS variables, and the classes that use them."""
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
    """The shade of a GPU count: 1, 2, 3–4, 5–8, 9–16, 17–32, more."""
    return int(size_shades(np.array([gpus], dtype=np.float64))[0])


def size_shades(gpus: FloatArray) -> IntArray:
    """The shades of many GPU counts at once."""
    return np.searchsorted(_LARGEST, gpus, side="left").astype(np.int64)


SIZE_LABELS = ("1", "2", "3–4", "5–8", "9–16", "17–32", "33+")
