"""OTLP over HTTP: the endpoint, and spans as the JSON that it takes."""

from __future__ import annotations

import http.client
import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from batuta.spec.problem import InputError
from batuta.telemetry.traces import Attribute, Attributes, Span

PATH = "/v1/traces"
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""Extra request headers as `name=value,…`: a token does not belong on a command line."""
_DEFAULT_PORTS = {"http": 4318, "https": 443}
_RETRYABLE = frozenset((429, 502, 503, 504))
_MAX_RESPONSE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ExportResponse:
    """The result of one attempt."""

    status: int  # 0 when the endpoint did not answer
    body: bytes = b""
    retry_after_s: float | None = None
    error: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_retryable(self) -> bool:
        """Whether the endpoint may accept the same request later."""
        return self.status == 0 or self.status in _RETRYABLE


@dataclass(slots=True)
class Endpoint:
    """An OTLP/HTTP receiver. One thread posts; another may abort that."""

    scheme: str
    host: str
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    _connection: http.client.HTTPConnection | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def post(self, body: bytes, within_s: float) -> ExportResponse:
        """Make one attempt, with `within_s` as timeout of each wait. It does not raise."""
        https = self.scheme == "https"
        make = http.client.HTTPSConnection if https else http.client.HTTPConnection
        self._connection = make(self.host, self.port, timeout=within_s)
        try:
            self._connection.request("POST", self.path, body, {"Content-Type": "application/json", **self.headers})
            response = self._connection.getresponse()
            answer = response.read(_MAX_RESPONSE_BYTES)
            retry_after_s = _seconds_until(response.getheader("Retry-After"))
            error = "" if 200 <= response.status < 300 else f"answers {response.status} {response.reason}"
            return ExportResponse(response.status, answer, retry_after_s, error)
        except (OSError, http.client.HTTPException, ValueError) as failure:
            return ExportResponse(0, error=str(failure) or type(failure).__name__)
        finally:
            self._connection.close()

    def abort(self) -> None:
        """Make a waiting attempt fail at once."""
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def parse_endpoint(url: str, what: str = "--otlp", environment: Mapping[str, str] | None = None) -> Endpoint:
    """Return the endpoint of a URL, or raise InputError. `/v1/traces` is added if missing."""
    fix = "as in http://127.0.0.1:4318"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InputError.of(f"{what}: {url!r} is no URL: {error}", fix=fix) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise InputError.of(f"{what} takes a URL that begins with http:// or https://, found {url!r}", fix=fix)
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError.of(
            f"{what} takes a URL without a user, a query or a fragment",
            fix=f"a token goes into ${HEADERS_VARIABLE}, as in authorization=Bearer%20…",
        )
    path = parts.path.rstrip("/")
    if not path.endswith(PATH):
        path += PATH
    headers = parse_headers((environment or {}).get(HEADERS_VARIABLE, ""))
    return Endpoint(parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port, path, headers)


def parse_headers(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`, where values may be percent-encoded."""
    found: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        name, value = unquote(name.strip()), unquote(value.strip())
        if not equals or not _is_token(name) or not value.isprintable() or not value.isascii():
            # The value may be a secret: the message omits it.
            raise InputError.of(
                f"${HEADERS_VARIABLE}: {name[:40]!r} is no header", fix="name=value,name=value; a blank is %20"
            )
        found[name] = value
    return found


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(one.isalnum() or one in "-_.!#$%&'*+^`|~" for one in name)


def _seconds_until(text: str | None) -> float | None:
    """Parse `Retry-After`: a number of seconds, or a date."""
    if not text:
        return None
    with suppress(ValueError):
        seconds = float(text)
        return seconds if 0 <= seconds < math.inf else None
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


SCOPE = "batuta.engine"
_INTERNAL = 1
_ERROR = 2


def encode_spans(resource: Attributes, version: str, spans: Sequence[Span]) -> bytes:
    """Return a request for `/v1/traces`; `resource` describes the sender.

    In OTLP's JSON, ids are hexadecimal, 64-bit numbers are text, enums are numbers.
    """
    request = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": SCOPE, "version": version}, "spans": [_span(one) for one in spans]}],
            }
        ]
    }
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def rejected_spans(body: bytes) -> int:
    """Return how many spans a response with status 200 reports as rejected."""
    try:
        answer = json.loads(body or b"{}")
        return max(0, int(answer.get("partialSuccess", {}).get("rejectedSpans", 0)))
    except (ValueError, TypeError, AttributeError):
        return 0  # not OTLP's JSON, but still a success


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
    """Return the word that protobuf's JSON uses for a number that JSON lacks."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
