"""Amounts as task files write them (`4`, `4+`, `64GB`, `50%`) and as Kubernetes does (`500m`, `10000Gi`).

Units of task files are those of SkyPilot's documentation: KB, MB, GB … are powers of 1024, as KiB, MiB, GiB …
are. To Kubernetes k, M, G … are powers of 1000, and Ki, Mi, Gi … powers of 1024.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from batuta.spec.problem import InputError

MOST = 1e9
"""No amount of anything is larger."""
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
LARGEST_QUANTITY = 2**63 - 1
"""What Kubernetes can count to."""
_QUANTITY_FIX = "for example 8, 500m or 64Gi"
_MEMORY_FIX = "for example 8GiB, 512MiB or, in GiB, 8"


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of something, or at least so much. Batuta places both alike: there is never less."""

    value: float
    or_more: bool = False

    def __str__(self) -> str:
        return f"{self.value:g}{'+' if self.or_more else ''}"


def parse_amount(text: str) -> Amount:
    """`4` or `4+`, above zero."""
    match = _AMOUNT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= MOST:
        raise InputError.of(
            f"{shown(text)} is not an amount above 0", fix="for example 4, or 4+ for at least 4"
        )
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
    """An exact amount of at least 1 MiB."""
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
    """The same in whole thousandths, rounded up: `500m` is 500, `1Ki` 1024000."""
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
    """A text from a user, quoted and cut to a length that a message can carry."""
    return repr(text) if len(text) <= longest else f"{text[: longest - 3]!r}…"
