"""Quantities as Kubernetes writes them: `500m`, `16Gi`, `1e3`."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_FORM: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIX: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
LARGEST: Final = 2**62
"""Columns hold 64 bits; a sum of a few of these still fits a Python int, and a single one fits a column."""


@lru_cache(maxsize=8192)
def amount(text: str) -> Fraction:
    """The exact value; what is no quantity counts as 0, because the API server lets none through."""
    found = _FORM.fullmatch(text)
    if found is None:
        return Fraction(0)
    number, exponent, suffix = found.groups()
    value = Fraction(number)
    if exponent is not None:
        return value * Fraction(10) ** int(exponent)
    return value * _SUFFIX[suffix or ""]


def whole(value: Fraction) -> int:
    """Rounded up, as the API means a request that is no whole number."""
    return min(-(-value.numerator // value.denominator), LARGEST)


def units(resource: str, value: Fraction) -> int:
    """In the unit in which a resource is counted: thousandths of a CPU, whole numbers of all else."""
    return whole(value * 1000) if resource == "cpu" else whole(value)
