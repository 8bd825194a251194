"""Logs of jobs whose pods are gone, read page by page from Loki."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import httpx2

from batuta.client.address import parse_url
from batuta.client.connection import Closable
from batuta.client.errors import ClientError
from batuta.client.kube.logs import ReportFilter, last_lines

LOKI_VARIABLE: Final = "BATUTA_LOKI"
TOKEN_VARIABLE: Final = "BATUTA_LOKI_TOKEN"
TENANT_VARIABLE: Final = "BATUTA_LOKI_TENANT"
TIMEOUT_S: Final = 30.0  # for one page, however slowly it comes
CONNECT_S: Final = 5.0
PAUSES_S: Final = (0.5, 1.0, 2.0)  # between tries, when Loki says that it has too much to do
LONGEST_PAUSE_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 64 << 20
_BUSY: Final = frozenset({429, 502, 503, 504})
_PATH: Final = "/loki/api/v1/query_range"
_EXCERPT: Final = 300

Direction: TypeAlias = Literal["forward", "backward"]


class LokiError(ClientError):
    """A query to Loki failed."""


@dataclass(frozen=True, slots=True)
class LokiAddress:
    """The URL of a Loki, with token and tenant."""

    url: str
    token: str = field(default="", repr=False)
    tenant: str = ""

    @classmethod
    def of(cls, text: str, token: str = "", tenant: str = "") -> Self:
        """Parse a URL, with or without the path of the API or of a push endpoint."""
        parts = parse_url(text)
        if parts is None or parts.query or parts.fragment:
            raise LokiError(f"{text!r} is not the address of a Loki: write it like http://loki.example:3100")
        path = r"(/loki/api/v1(/[a-z_]+)?|/otlp(/v1/logs)?)?/*$"
        return cls(re.sub(path, "", parts.geturl()), token, tenant)

    @property
    def name(self) -> str:
        """The URL without a password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@dataclass(frozen=True, slots=True)
class Line:
    """A log line. `stream` distinguishes lines of one time and text."""

    time_ns: int
    text: str
    stream: str = ""


@dataclass
class Loki(Closable):
    """A connection to one Loki. Opens nothing before it is used."""

    address: LokiAddress
    timeout_s: float = field(default=TIMEOUT_S, kw_only=True)
    pauses_s: Sequence[float] = field(default=PAUSES_S, kw_only=True)
    most_bytes: int = field(default=MAX_RESPONSE_BYTES, kw_only=True)
    over: httpx2.BaseTransport | None = field(default=None, kw_only=True)
    _http: httpx2.Client | None = field(default=None, init=False)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    @property
    def name(self) -> str:
        return self.address.name

    def page(self, query: str, from_ns: int, to_ns: int, *, limit: int, direction: Direction = "forward") -> list[Line]:
        """At most `limit` lines with `from_ns` <= time < `to_ns`, in the order of `direction`."""
        params = {"query": query, "start": str(from_ns), "end": str(to_ns), "limit": str(limit), "direction": direction}
        lines = self._read(self._with_retries(params))
        # Streams come one after another. Lines of one nanosecond keep the order that Loki gives them.
        lines.sort(key=lambda line: line.time_ns, reverse=direction == "backward")
        return lines[:limit]

    def _with_retries(self, params: Mapping[str, str]) -> bytes:
        for pause_s in (*self.pauses_s, None):
            status, headers, body = self._once(params)
            if status == 200:
                return body
            if status not in _BUSY or pause_s is None:
                raise self._refusal(status, body)
            time.sleep(_retry_after_s(headers, pause_s))
        raise AssertionError("the last try returns or raises")

    def _once(self, params: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        until_s = time.monotonic() + self.timeout_s
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
            if len(body) > self.most_bytes:
                raise LokiError(
                    f"the answer of Loki at {self.name} is larger than {self.most_bytes >> 20} MiB: "
                    "ask for less with --since TIME or --tail N"
                )
            if time.monotonic() > until_s:
                raise self._too_slow()
        return bytes(body)

    def _open(self) -> httpx2.Client:
        if self._http is None:
            address = self.address
            parts = urlsplit(address.url)
            headers = {"Accept": "application/json"}
            if address.token:
                headers["Authorization"] = f"Bearer {address.token}"
            if address.tenant:
                headers["X-Scope-OrgID"] = address.tenant
            self._http = httpx2.Client(
                base_url=address.url,
                headers=headers,
                timeout=httpx2.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s)),
                # A proxy is for the world outside; certificates are only loaded where they are needed.
                trust_env=parts.hostname not in ("127.0.0.1", "localhost", "::1"),
                verify=parts.scheme == "https",
                transport=self.over,
            )
        return self._http

    def _read(self, body: bytes) -> list[Line]:
        try:
            answer = json.loads(body)
            data = answer["data"]
            if answer["status"] != "success" or data["resultType"] != "streams":
                raise ValueError(data["resultType"])
            return [line for stream in data["result"] for line in _stream_lines(stream)]
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
            f"Loki at {self.name} did not answer within {self.timeout_s:g} s: "
            "ask for less with --since TIME or --tail N"
        )


def quote_logql(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _stream_lines(stream: Mapping[str, Any]) -> Iterator[Line]:
    labels = json.dumps(stream["stream"], sort_keys=True)
    for value in stream["values"]:
        yield Line(int(value[0]), str(value[1]), labels)


def _retry_after_s(headers: Mapping[str, str], usual_s: float) -> float:
    try:
        return min(LONGEST_PAUSE_S, max(usual_s, float(headers.get("Retry-After", ""))))
    except ValueError:
        return usual_s


def _excerpt(body: bytes) -> str:
    text = " ".join(body[: 4 * _EXCERPT].decode("utf-8", "replace").split())
    return (text[:_EXCERPT] + "…" if len(text) > _EXCERPT else text) or "it says nothing"


PAGE_LINES: Final = 2_000  # well below the limit of a Loki (5,000 by default)
WINDOW_NS: Final = 7 * 86_400 * 10**9  # a Loki refuses queries over a month and more


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """A query with a time range, whose end is exclusive."""

    query: str
    from_ns: int
    to_ns: int


def read_lines(
    loki: Loki,
    asked: RangeQuery,
    *,
    newest_first: bool = False,
    page_lines: int = PAGE_LINES,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Line]:
    """Yield every line once, by time. `note` is called if lines cannot be read."""
    starts = range(asked.from_ns, asked.to_ns, WINDOW_NS)
    for from_ns in reversed(starts) if newest_first else starts:
        window = RangeQuery(asked.query, from_ns, min(from_ns + WINDOW_NS, asked.to_ns))
        yield from _in_window(loki, window, "backward" if newest_first else "forward", page_lines, note)


def _in_window(
    loki: Loki, asked: RangeQuery, direction: Direction, page_lines: int, note: Callable[[str], None]
) -> Iterator[Line]:
    from_ns, to_ns = asked.from_ns, asked.to_ns
    had: Counter[Line] = Counter()  # lines of the time at which the last page ended
    while from_ns < to_ns:
        page = loki.page(asked.query, from_ns, to_ns, limit=page_lines, direction=direction)
        for line in page:
            if had[line]:
                had[line] -= 1
            else:
                yield line
        if len(page) < page_lines:
            return
        # The page may end within the lines of one time, so the next one begins with all of that time.
        last_ns = page[-1].time_ns
        had = Counter(line for line in page if line.time_ns == last_ns)
        if page[0].time_ns == last_ns:
            note(f"more than {page_lines:,} lines have one time: some of them may be left out")
            had.clear()
            last_ns += 1 if direction == "forward" else -1
        if direction == "forward":
            from_ns = last_ns
        else:
            to_ns = last_ns + 1


NAMESPACE_LABEL: Final = "k8s_namespace_name"
JOB_LABEL: Final = "service_name"
REPLICA_LABEL: Final = "batuta_replica"
LAUNCHER: Final = "launcher"
MAX_OUTPUT_LINES: Final = 1_000_000
MAX_OUTPUT_BYTES: Final = 512 << 20
_NS_PER_S: Final = 10**9
_PIECE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ArchivedJob:
    """A replica of a job, and the time of its output.

    The labels are those of the chart's collector: namespace and job (`service.name`) are stream labels; the
    replica is structured metadata, `launcher` for a launcher.
    """

    namespace: str
    name: str
    rank: int
    from_s: float
    to_s: float

    def query(self, replica: str) -> RangeQuery:
        labels = f"{NAMESPACE_LABEL}={quote_logql(self.namespace)}, {JOB_LABEL}={quote_logql(self.name)}"
        query = f"{{{labels}}} | {REPLICA_LABEL}={quote_logql(replica)}"
        return RangeQuery(query, int(self.from_s * _NS_PER_S), int(self.to_s * _NS_PER_S))


def archived_output(loki: Loki, job: ArchivedJob, tail: int | None, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the output in order, without the SDK's reports; with `tail`, its last lines."""
    asked = _query_of(loki, job)
    if tail is None:
        yield from _pieces(_bounded(read_lines(loki, asked, note=note), note))
    elif tail > 0:
        yield _tail(loki, asked, tail, note)


def _query_of(loki: Loki, job: ArchivedJob) -> RangeQuery:
    """Return the query of a replica; replica 0 of a job with a launcher is the launcher."""
    if job.rank == 0:
        launcher = job.query(LAUNCHER)
        if next(read_lines(loki, launcher, newest_first=True, page_lines=1), None) is not None:
            return launcher
    return job.query(str(job.rank))


def _pieces(found: Iterable[Line]) -> Iterator[bytes]:
    readable, held = ReportFilter(), bytearray()
    for line in found:
        held += readable.take(_bytes(line))
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held) + readable.rest()


def _tail(loki: Loki, asked: RangeQuery, count: int, note: Callable[[str], None]) -> bytes:
    """Return the last lines, reading back until enough of them are no reports."""
    found: list[Line] = []
    enough, shown = count, b""
    page_lines = min(PAGE_LINES, 100 + count)
    back = _bounded(read_lines(loki, asked, newest_first=True, page_lines=page_lines, note=note), note)
    for line in back:
        found.append(line)
        if len(found) < enough:
            continue
        shown = last_lines(_readable(found), count)
        if shown.count(b"\n") >= count:
            return shown
        enough = 2 * len(found)
    return last_lines(_readable(found), count)


def _readable(newest_first: list[Line]) -> bytes:
    readable = ReportFilter()
    return readable.take(b"".join(map(_bytes, reversed(newest_first)))) + readable.rest()


def _bounded(found: Iterable[Line], note: Callable[[str], None]) -> Iterator[Line]:
    size = 0
    for number, line in enumerate(found):
        size += len(line.text)
        if number >= MAX_OUTPUT_LINES or size > MAX_OUTPUT_BYTES:
            note(f"stopped after {number:,} lines: --since TIME and --tail N choose others")
            return
        yield line


def _bytes(line: Line) -> bytes:
    return line.text.encode("utf-8", "surrogatepass") + b"\n"
