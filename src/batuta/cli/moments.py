"""Moments as people write them on a command line."""

from __future__ import annotations

import re
import time
from datetime import datetime

_FIX = "write it like 2026-11-16, '2026-11-16 09:30', 09:30, or 24h for 24 hours ago"
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def parse_moment_s(text: str, option: str, now_s: float) -> float:
    """Unix seconds of a date, a date and time, a time of today, Unix seconds, or so long ago."""
    from batuta.spec.duration import parse_duration_s
    from batuta.spec.problem import InputError

    text = text.strip()
    if re.fullmatch(r"[0-9]{9,11}(\.[0-9]+)?", text):
        return float(text)
    if clock := _CLOCK.fullmatch(text):
        year, month, day, *_ = time.localtime(now_s)
        return time.mktime((year, month, day, int(clock[1]), int(clock[2]), 0, 0, 0, -1))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return now_s - parse_duration_s(text.removesuffix(" ago"), option)
    except InputError:
        raise InputError.of(f"{option}: {text!r} is not a moment", fix=_FIX) from None
