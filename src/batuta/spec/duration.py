"""Durations as people write them: `90`, `90s`, `5m`, `1.5h`, `2d`."""

from __future__ import annotations

import math
import re

from batuta.spec.problem import InputError

_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


def parse_duration_s(text: str, what: str = "duration") -> float:
    """Seconds; refuses what is not a non-negative number with a known unit."""
    match = _PATTERN.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS_S:
        raise InputError.of(f"{what} {text!r} is not a duration", fix="write it like 30s, 5m, 1.5h or 2d")
    return float(match[1]) * _UNITS_S[match[2]]


def show_duration(seconds: float) -> str:
    """Two leading units: `1d 4h`, `2h 5m`, `3m 20s`, `12.5s`."""
    if math.isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    for size, unit, part, part_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part}{part_unit}"
    return f"{whole // 60}m {whole % 60}s"
