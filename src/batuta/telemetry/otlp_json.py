"""Spans as OTLP/HTTP wants them in JSON: ids in hexadecimal, 64-bit numbers as text, enums as numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from batuta.telemetry.span import Attribute, Attributes, Span

SCOPE = "batuta.engine"
_INTERNAL = 1
_ERROR = 2


def encode(resource: Attributes, version: str, spans: Sequence[Span]) -> bytes:
    """One request for `/v1/traces`. `resource` is who sends it."""
    request = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": SCOPE, "version": version}, "spans": [_span(one) for one in spans]}
                ],
            }
        ]
    }
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def rejected_spans(body: bytes) -> int:
    """How many spans an answer with status 200 says were not taken."""
    try:
        answer = json.loads(body or b"{}")
        return max(0, int(answer.get("partialSuccess", {}).get("rejectedSpans", 0)))
    except (ValueError, TypeError, AttributeError):
        return 0  # an answer in other words is still an answer


def _span(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id:
        found["parentSpanId"] = f"{span.parent_id:016x}"
    if span.error:
        found["status"] = {"code": _ERROR, "message": span.error}
    return found


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes]


def _value(value: Attribute) -> dict[str, Any]:
    if isinstance(value, bool):  # before int, which it is too
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _word(value)}
    return {"stringValue": str(value)}


def _word(value: float) -> str:
    """JSON has no numbers for these; that of protobuf has words."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
