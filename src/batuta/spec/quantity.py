"""Amounts as task files write them: `4`, `4+`, `32`, `64GB`, `50%`.

Units are those of SkyPilot's documentation: KB, MB, GB … are powers of 1024, as KiB, MiB, GiB … are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from batuta.spec.problem import InputError

MOST = 1e9
"""No amount of anything is larger."""
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_AMOUNT = re.compile(rf"{_NUMBER}\s*(\+?)")
_MEMORY = re.compile(rf"{_NUMBER}\s*([KMGTP]?)(?:I?B)?\s*(\+?)", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,3})\s*%?")
_MIB_OF_UNIT = {"k": 2**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}
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


def shown(text: str, longest: int = 60) -> str:
    """A text from a user, quoted and cut to a length that a message can carry."""
    return repr(text) if len(text) <= longest else f"{text[: longest - 3]!r}…"
