"""Types of the chart's values that several parts of it share."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, StringConstraints, WithJsonSchema

_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
Quantity: TypeAlias = Annotated[str, StringConstraints(pattern=_QUANTITY)]


def _check_amount(amount: str | int | float) -> str | int | float:
    if not re.match(_QUANTITY, str(amount)):
        raise ValueError(f"{amount!r} is not an amount, as in 500m, 2 or 4Gi")
    return amount


# A quantity that may also be a plain number, as people write CPUs.
Amount: TypeAlias = Annotated[
    str | int | float,
    AfterValidator(_check_amount),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _QUANTITY}, {"type": "number", "minimum": 0}]}),
]
PrometheusDuration: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9]+(ms|s|m|h)$")]
# A name of several labels joined by dots, or nothing.
OptionalName: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)
]
# Short enough for `-operator` and the like to follow.
Prefix: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=50)
]
Strings: TypeAlias = dict[str, str]
Raw: TypeAlias = dict[str, Any]
