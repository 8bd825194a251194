"""Answers as JSON bytes, quickly: what is shown is made of dicts, and the models only describe them."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as encode
from starlette.responses import Response


def to_json(value: Any) -> bytes:
    """Compact JSON. What is no number is null."""
    try:
        return encode(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        # Half of a character pair has no UTF-8, but an escape.
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers, "application/json")


def _finite(value: Any) -> Any:
    """The same without NaN and infinities, which JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
