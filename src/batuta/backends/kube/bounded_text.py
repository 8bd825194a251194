"""Read texts of labels, annotations, specs and statuses within bounds: any client may have written them.

No reader raises. Each returns None, or what the caller names, for text that is too long, no value of its kind or out of
range. All of Batuta reads texts of objects here, so that a bound holds everywhere or nowhere.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange, timegm
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from batuta.backends.kube import names

T = TypeVar("T")
LARGEST_WHOLE: Final = 2**53  # above it, a float cannot tell neighbours apart
LARGEST_QUANTITY: Final = Fraction(2**63 - 1)  # as Kubernetes, which cuts off what is larger
SMALLEST_QUANTITY: Final = Fraction(1, 10**9)
MOST_GPUS: Final = 1024  # of a node
LONGEST_JSON: Final = 256 << 10  # characters: all annotations of an object together have as many bytes
LATEST_S: Final = 253_402_300_800.0  # the end of the year 9999
_LONGEST_NUMBER: Final = 64
_LONGEST_TIME: Final = 64
_LONGEST_LIST: Final = 8 << 10
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32}))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)"
)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?P<fraction>\.[0-9]{1,9})?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>[01][0-9]|2[0-3]):(?P<minutes>[0-5][0-9]))"
)
_SUFFIX: Final = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


def read_whole(text: str | None, *, least: int = 0, most: int = LARGEST_WHOLE) -> int | None:
    """A whole number, as ASCII digits without a sign."""
    if not text or len(text) > _LONGEST_NUMBER or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if least <= value <= most else None


def read_signed(text: str | None) -> int | None:
    """A whole number of 64 bits that may have a sign, as node affinity compares them."""
    digits = (text or "").removeprefix("-") if (text or "").startswith("-") else (text or "").removeprefix("+")
    value = read_whole(digits, most=2**63 - 1)
    return -value if value is not None and (text or "").startswith("-") else value


def read_wholes(text: str | None, *, least: int = 0, most: int = LARGEST_WHOLE) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once; empty where one of them cannot be read."""
    if not text or len(text) > _LONGEST_LIST:
        return ()
    found = [read_whole(part.strip(), least=least, most=most) for part in text.split(",") if part.strip()]
    known = [value for value in found if value is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else ()


def read_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs of its node that a pod was given, from its annotation; empty where it says nothing that can be read."""
    return read_wholes(annotations.get(names.GPUS), most=MOST_GPUS - 1)


def by_gpu(told: Mapping[str, T]) -> dict[int, T]:
    """What a JSON object says of GPUs, by their numbers; keys that are no number of a GPU are left out."""
    found = ((read_whole(key, most=MOST_GPUS - 1), one) for key, one in told.items())
    return {gpu: one for gpu, one in found if gpu is not None}


def read_decimal(text: str | None, *, least: float = -math.inf, most: float = math.inf) -> float | None:
    """A finite number in decimals, such as `0.25` or `1e3`."""
    if not text or len(text) > _LONGEST_NUMBER or _DECIMAL.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) and least <= value <= most else None


def read_quantity(text: str) -> Fraction | None:
    """The exact amount of a Kubernetes quantity (`500m`, `16Gi`); one that Kubernetes cannot count to is cut off."""
    return _quantity(text) if len(text) <= _LONGEST_NUMBER else None


@lru_cache(maxsize=8192)
def _quantity(text: str) -> Fraction | None:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    unit = _SUFFIX[suffix or ""] if exponent is None else Fraction(10) ** int(exponent)
    value = Fraction(number) * unit
    size = min(abs(value), LARGEST_QUANTITY)
    size = max(size, SMALLEST_QUANTITY) if value else size
    return -size if value < 0 else size


def read_json(text: str | None, kind: type[T], empty: T) -> T:
    """The value of a JSON text; `empty` for none, and for one that is too long, too deep or not of this type."""
    if not text or len(text) > LONGEST_JSON:
        return empty
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (ValueError, RecursionError):  # ValueError is above all errors of msgspec, and of encodings
        return empty


def read_time(text: Any) -> float | None:
    """Unix seconds of a time as the API server writes it (RFC 3339); None before 1970 and for what is no time."""
    found = _TIME.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST_TIME else None
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if not year >= 1970 or not 1 <= month <= 12 or not 1 <= day <= monthrange(year, month)[1]:
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    found_s = timegm((year, month, day, hour, minute, second)) + float(
        (found["fraction"] or "0")[:7]
    )  # microseconds, as a datetime has
    if found["sign"]:
        offset_s = 3600 * int(found["hours"]) + 60 * int(found["minutes"])
        found_s -= offset_s if found["sign"] == "+" else -offset_s
    return found_s if 0.0 <= found_s < LATEST_S else None
