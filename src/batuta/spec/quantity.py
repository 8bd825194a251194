"""Amounts and durations as users write them.

Task files write `4`, `4+`, `64GB`, `50%`; their units are those of SkyPilot's documentation: KB, MB, GB …
are powers of 1024, as KiB, MiB, GiB … are. Kubernetes writes `500m`, `10000Gi`: k, M, G … are powers of
1000 there, and Ki, Mi, Gi … powers of 1024. Durations are `90`, `90s`, `5m`, `1.5h`, `2d`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from batuta.spec.problem import InputError

MOST = 1e9  # the largest amount of any resource
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_AMOUNT = re.compile(rf"{_NUMBER}\s*(\+?)")
_MEMORY = re.compile(rf"{_NUMBER}\s*([KMGTP]?)(?:I?B)?\s*(\+?)", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,3})\s*%?")
_MIB_OF_UNIT = {"k": 2**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24}))(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)"
)
_SUFFIX = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("n", "u", "m", "", *"kMGTPE"), start=-3)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
LARGEST_QUANTITY = 2**63 - 1  # what Kubernetes can count to
_QUANTITY_FIX = "for example 8, 500m or 64Gi"
_MEMORY_FIX = "for example 8GiB, 512MiB or, in GiB, 8"
_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Amount:
    """An exact or a minimum amount. The scheduler treats both as a minimum."""

    value: float
    or_more: bool = False

    def __str__(self) -> str:
        return f"{self.value:g}{'+' if self.or_more else ''}"


def parse_amount(text: str) -> Amount:
    """`4` or `4+`, above zero."""
    match = _AMOUNT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= MOST:
        raise InputError.of(f"{shown(text)} is not an amount above 0", fix="for example 4, or 4+ for at least 4")
    return Amount(float(match[1]), bool(match[2]))


def parse_memory_gib(text: str) -> Amount:
    """`32`, `32+`, `64GB`, `512MB+` in GiB; a number without a unit is in GiB already."""
    match = _MEMORY.fullmatch(text)
    if match is not None:
        gib = float(match[1]) * _MIB_OF_UNIT[(match[2] or "g").lower()] / 2**10
        if 0 < gib <= MOST:
            return Amount(gib, bool(match[3]))
    raise InputError.of(f"{shown(text)} is not an amount of memory", fix=_MEMORY_FIX)


def parse_memory_mib(text: str) -> int:
    try:
        amount = parse_memory_gib(text)
    except InputError:
        amount = Amount(0)
    mib = int(amount.value * 2**10)
    if mib < 1 or amount.or_more:
        raise InputError.of(f"{shown(text)} is not an amount of memory", fix=_MEMORY_FIX)
    return mib


def parse_percent(text: str) -> int:
    """`50%` or `50`: a whole number within 1..100."""
    match = _PERCENT.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= 100:
        raise InputError.of(f"{shown(text)} is not a share in percent", fix="a whole number within 1%..100%")
    return int(match[1])


def parse_quantity(text: str) -> Fraction:
    """A quantity of Kubernetes, exactly: `500m`, `1e3`, `64Gi`, `-1`."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError.of(f"{shown(text)} is not a quantity", fix=_QUANTITY_FIX)
    number, exponent, suffix = match.groups()
    unit = Fraction(10) ** int(exponent) if exponent is not None else _SUFFIX[suffix or ""]
    value = Fraction(number) * unit
    if abs(value) > LARGEST_QUANTITY:
        raise InputError.of(f"{shown(text)} is larger than Kubernetes can count", fix=_QUANTITY_FIX)
    return value


def parse_milli(text: str) -> int:
    """Return a quantity in whole thousandths, rounded up: `500m` is 500, `1Ki` 1024000."""
    return math.ceil(parse_quantity(text) * 1000)


def show_milli(milli: int, *, is_bytes: bool = False) -> str:
    """Thousandths as a quantity that `parse_milli` reads as the same; bytes in the largest whole unit."""
    if milli % 1000:
        return f"{milli}m"
    whole = milli // 1000
    if is_bytes and whole:
        for power, unit in reversed(list(enumerate("KMGTPE", start=1))):
            if whole % 1024**power == 0:
                return f"{whole // 1024**power}{unit}i"
    return str(whole)


def shown(text: str, longest: int = 60) -> str:
    """Return a text from a user, quoted and truncated for a message."""
    return repr(text) if len(text) <= longest else f"{text[: longest - 3]!r}…"


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
