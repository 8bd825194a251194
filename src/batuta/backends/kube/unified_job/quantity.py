"""Amounts as people wrote them into a template: numbers or strings, and not yet checked by anybody."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

from batuta.backends.kube.binder.quantity import amount

_ZERO: Final = re.compile(r"[+-]?0+\.?0*(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?")


def parse_quantity(value: Any) -> Fraction | None:
    """The exact amount; None when it is none, or below zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 64:
        return None
    text = str(value)
    found = amount(text)
    return found if found > 0 or _ZERO.fullmatch(text) else None
