"""Questions to a Loki: one page of lines at a time, within limits, and one clear sentence when it fails."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import httpx2

from batuta.client.errors import ClientError

LOKI_VARIABLE: Final = "BATUTA_LOKI"
TOKEN_VARIABLE: Final = "BATUTA_LOKI_TOKEN"
TENANT_VARIABLE: Final = "BATUTA_LOKI_TENANT"
TIMEOUT_S: Final = 30.0
"""For one page, however slowly it comes."""
CONNECT_S: Final = 5.0
PAUSES_S: Final = (0.5, 1.0, 2.0)
"""Between tries, when Loki says that it has too much to do."""
LONGEST_PAUSE_S: Final = 5.0
MOST_BYTES: Final = 64 << 20
"""Of one answer."""
_BUSY: Final = frozenset({429, 502, 503, 504})
_PATH: Final = "/loki/api/v1/query_range"
_EXCERPT: Final = 300

Direction: TypeAlias = Literal["forward", "backward"]


class LokiError(ClientError):
    """A Loki did not answer the question."""


@dataclass(frozen=True, slots=True)
class LokiAddress:
    """Where a Loki is, and who we are to it."""

    url: str
    token: str = field(default="", repr=False)
    tenant: str = ""

    @classmethod
    def of(cls, text: str, token: str = "", tenant: str = "") -> Self:
        """Takes what people have at hand: with or without the path of the API or of a push."""
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            sound = False
        if not sound or parts.query or parts.fragment:
            raise LokiError(f"{text!r} is not the address of a Loki: write it like http://loki.example:3100")
        return cls(re.sub(r"(/loki/api/v1(/[a-z_]+)?|/otlp(/v1/logs)?)?/*$", "", url), token, tenant)

    @property
    def name(self) -> str:
        """How people call it: without a password that stands in it."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@dataclass(frozen=True, slots=True)
class Line:
    """One line that was logged. `stream` tells lines of one time and text apart."""

    time_ns: int
    text: str
    stream: str = ""


class Loki:
    """A connection to one Loki. Opens nothing before it is used."""

    def __init__(
        self,
        address: LokiAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        pauses_s: Sequence[float] = PAUSES_S,
        most_bytes: int = MOST_BYTES,
        over: httpx2.BaseTransport | None = None,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._pauses_s = tuple(pauses_s)
        self._most_bytes = most_bytes
        self._over = over
        self._http: httpx2.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    @property
    def name(self) -> str:
        return self._address.name

    def page(
        self, query: str, from_ns: int, to_ns: int, *, limit: int, direction: Direction = "forward"
    ) -> list[Line]:
        """At most `limit` lines with `from_ns` <= time < `to_ns`, in the order of `direction`."""
        params = {
            "query": query,
            "start": str(from_ns),
            "end": str(to_ns),
            "limit": str(limit),
            "direction": direction,
        }
        lines = self._read(self._patiently(params))
        # Streams come one after another. Lines of one nanosecond have whatever order Loki gives them.
        lines.sort(key=lambda line: line.time_ns, reverse=direction == "backward")
        return lines[:limit]

    # -------------------------------------------------------------------------------------------- the request

    def _patiently(self, params: Mapping[str, str]) -> bytes:
        for pause_s in (*self._pauses_s, None):
            status, headers, body = self._once(params)
            if status == 200:
                return body
            if status not in _BUSY or pause_s is None:
                raise self._refusal(status, body)
            time.sleep(_asked_pause_s(headers, pause_s))
        raise AssertionError("the last try returns or raises")

    def _once(self, params: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        until_s = time.monotonic() + self._timeout_s
        try:
            with self._open().stream("GET", _PATH, params=params) as response:
                return response.status_code, response.headers, self._body(response.iter_bytes(), until_s)
        except httpx2.ConnectError as error:
            why = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
            raise LokiError(f"Loki at {self.name} cannot be reached: {why}") from None
        except httpx2.TimeoutException:
            raise self._too_slow() from None
        except httpx2.TransportError as error:
            raise LokiError(f"Loki at {self.name} broke off: {error}") from None
        except httpx2.InvalidURL as error:
            raise LokiError(f"Loki at {self.name} is no address: {error}") from None

    def _body(self, pieces: Iterator[bytes], until_s: float) -> bytes:
        body = bytearray()
        for piece in pieces:
            body += piece
            if len(body) > self._most_bytes:
                raise LokiError(
                    f"the answer of Loki at {self.name} is larger than {self._most_bytes >> 20} MiB: "
                    "ask for less with --since TIME or --tail N"
                )
            if time.monotonic() > until_s:
                raise self._too_slow()
        return bytes(body)

    def _open(self) -> httpx2.Client:
        if self._http is None:
            address = self._address
            parts = urlsplit(address.url)
            headers = {"Accept": "application/json"}
            if address.token:
                headers["Authorization"] = f"Bearer {address.token}"
            if address.tenant:
                headers["X-Scope-OrgID"] = address.tenant
            self._http = httpx2.Client(
                base_url=address.url,
                headers=headers,
                timeout=httpx2.Timeout(self._timeout_s, connect=min(CONNECT_S, self._timeout_s)),
                # A proxy is for the world outside; certificates are only loaded where they are needed.
                trust_env=parts.hostname not in ("127.0.0.1", "localhost", "::1"),
                verify=parts.scheme == "https",
                transport=self._over,
            )
        return self._http

    # --------------------------------------------------------------------------------------------- the answer

    def _read(self, body: bytes) -> list[Line]:
        try:
            answer = json.loads(body)
            data = answer["data"]
            if answer["status"] != "success" or data["resultType"] != "streams":
                raise ValueError(data["resultType"])
            return [line for stream in data["result"] for line in _lines(stream)]
        except (ValueError, KeyError, TypeError):
            raise LokiError(f"{self.name} does not speak Loki's API: {_excerpt(body)}") from None

    def _refusal(self, status: int, body: bytes) -> LokiError:
        said = _excerpt(body)
        if status in (401, 403):
            fix = f"${TOKEN_VARIABLE} has the token, --loki-tenant or ${TENANT_VARIABLE} the tenant"
            return LokiError(f"Loki at {self.name} does not let us in ({status}: {said}): {fix}")
        if status == 404:
            return LokiError(f"there is no Loki at {self.name}: it knows no {_PATH}")
        if status == 429:
            return LokiError(f"Loki at {self.name} has too much to do ({said}): try again in a while")
        return LokiError(f"Loki at {self.name} refuses ({status}): {said}")

    def _too_slow(self) -> LokiError:
        return LokiError(
            f"Loki at {self.name} did not answer within {self._timeout_s:g} s: "
            "ask for less with --since TIME or --tail N"
        )


def quoted(text: str) -> str:
    """A text as LogQL writes it, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _lines(stream: Mapping[str, Any]) -> Iterator[Line]:
    labels = json.dumps(stream["stream"], sort_keys=True)
    for value in stream["values"]:
        yield Line(int(value[0]), str(value[1]), labels)


def _asked_pause_s(headers: Mapping[str, str], usual_s: float) -> float:
    try:
        return min(LONGEST_PAUSE_S, max(usual_s, float(headers.get("Retry-After", ""))))
    except ValueError:
        return usual_s


def _excerpt(body: bytes) -> str:
    text = " ".join(body[: 4 * _EXCERPT].decode("utf-8", "replace").split())
    return (text[:_EXCERPT] + "…" if len(text) > _EXCERPT else text) or "it says nothing"
