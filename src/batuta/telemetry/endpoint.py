"""Where traces go: a URL, what to send along, and one attempt to hand a request over."""

from __future__ import annotations

import http.client
import math
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

from batuta.spec.problem import InputError

PATH = "/v1/traces"
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""Headers to send along, as `name=value,…`: a token does not belong on a command line."""
_USUAL_PORTS = {"http": 4318, "https": 443}
_RETRYABLE = frozenset((429, 502, 503, 504))
_MOST_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one attempt."""

    status: int
    """0 when nobody answered."""
    body: bytes = b""
    retry_after_s: float | None = None
    trouble: str = ""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_worth_another(self) -> bool:
        """Whether the same request may be taken later."""
        return self.status == 0 or self.status in _RETRYABLE


@dataclass(slots=True)
class Endpoint:
    """An OTLP/HTTP receiver. One thread posts; another may break that off."""

    scheme: str
    host: str
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    _connection: http.client.HTTPConnection | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def post(self, body: bytes, within_s: float) -> Answer:
        """One attempt; no single wait within it is longer than that. It does not raise."""
        https = self.scheme == "https"
        make = http.client.HTTPSConnection if https else http.client.HTTPConnection
        self._connection = make(self.host, self.port, timeout=within_s)
        try:
            self._connection.request(
                "POST", self.path, body, {"Content-Type": "application/json", **self.headers}
            )
            response = self._connection.getresponse()
            answer = response.read(_MOST_ANSWER_BYTES)
            again_s = _seconds_until(response.getheader("Retry-After"))
            trouble = "" if 200 <= response.status < 300 else f"answers {response.status} {response.reason}"
            return Answer(response.status, answer, again_s, trouble)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(0, trouble=str(error) or type(error).__name__)
        finally:
            self._connection.close()

    def break_off(self) -> None:
        """Lets an attempt that waits fail at once."""
        connection = self._connection
        own = None if connection is None else connection.sock
        if own is not None:
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)


def read_endpoint(url: str, what: str = "--otlp", environment: Mapping[str, str] | None = None) -> Endpoint:
    """The endpoint of a URL as people write it, or an InputError. `/v1/traces` is added if missing."""
    fix = "as in http://127.0.0.1:4318"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InputError.of(f"{what}: {url!r} is no URL: {error}", fix=fix) from None
    if parts.scheme not in _USUAL_PORTS or not parts.hostname:
        raise InputError.of(
            f"{what} takes a URL that begins with http:// or https://, found {url!r}", fix=fix
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError.of(
            f"{what} takes a URL without a user, a query or a fragment",
            fix=f"a token goes into ${HEADERS_VARIABLE}, as in authorization=Bearer%20…",
        )
    path = parts.path.rstrip("/")
    if not path.endswith(PATH):
        path += PATH
    headers = read_headers((environment or {}).get(HEADERS_VARIABLE, ""))
    return Endpoint(
        parts.scheme, parts.hostname, _USUAL_PORTS[parts.scheme] if port is None else port, path, headers
    )


def read_headers(text: str) -> dict[str, str]:
    """Headers as `name=value,name=value`, where values may have %20 and the like."""
    found: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        name, value = unquote(name.strip()), unquote(value.strip())
        if not equals or not _is_token(name) or not value.isprintable() or not value.isascii():
            # The value may be a secret: it is not shown.
            raise InputError.of(
                f"${HEADERS_VARIABLE}: {name[:40]!r} is no header",
                fix="name=value,name=value; a blank is %20",
            )
        found[name] = value
    return found


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(one.isalnum() or one in "-_.!#$%&'*+^`|~" for one in name)


def _seconds_until(text: str | None) -> float | None:
    """What `Retry-After` says: a number of seconds, or a date."""
    if not text:
        return None
    with suppress(ValueError):
        seconds = float(text)
        return seconds if 0 <= seconds < math.inf else None
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
