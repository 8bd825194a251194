"""A stand-in for Loki: a real HTTP server that answers `query_range` as Loki 3 documents it.

Start is inclusive and end exclusive, times are strings of nanoseconds, the limit counts lines of all streams
together, and a question that is too large is refused in Loki's words. It knows selectors of labels that are
equal and one filter behind them, which is all that Batuta asks. It takes logs by OTLP in JSON, and names
attributes as Loki does.
"""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MOST_LINES = 5_000
LONGEST_NS = 721 * 3600 * 10**9
_PAIR = r'([a-z0-9_]+)="((?:[^"\\]|\\.)*)"'
_QUERY = re.compile(rf"\{{({_PAIR}(?:, {_PAIR})*)\}}(?: \| ({_PAIR}))?")


class BadQuestion(Exception):
    """What Loki answers with status 400."""


@dataclass(frozen=True)
class Kept:
    """One line with its labels, those of the stream and those beside it together."""

    time_ns: int
    text: str
    labels: Mapping[str, str]


@dataclass
class LokiStandIn:
    """For a `with` block."""

    kept: list[Kept] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refuse: list[tuple[int, str]] = field(default_factory=list)
    """Statuses and texts that are answered instead, one for each question from the front on."""
    push_headers: list[dict[str, str]] = field(default_factory=list)
    refuse_push: list[int] = field(default_factory=list)
    """The same for logs that are sent here."""
    stall: threading.Event | None = None
    """While it is not set, answers do not come."""

    def keep(self, time_ns: int, text: str, **labels: str) -> None:
        self.kept.append(Kept(time_ns, text, labels))

    def keep_job(self, namespace: str, job: str, replica: str, time_ns: int, *lines: str) -> None:
        """Lines as the chart's collector sends them, a millisecond apart."""
        labels = {"k8s_namespace_name": namespace, "service_name": job, "batuta_replica": replica}
        for number, line in enumerate(lines):
            self.keep(time_ns + number * 1_000_000, line, **labels)

    def __enter__(self) -> "LokiStandIn":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.stall is not None:
            self.stall.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, params: Mapping[str, str]) -> dict[str, Any]:
        labels = _labels(params["query"])
        start, end, limit = int(params["start"]), int(params["end"]), int(params["limit"])
        if limit > MOST_LINES:
            raise BadQuestion(f"max entries limit per query exceeded, limit > max_entries_limit_per_query ({limit})")
        if end - start > LONGEST_NS:
            raise BadQuestion("the query time range exceeds the limit (limit: 30d1h)")
        backward = {"forward": False, "backward": True}[params["direction"]]
        fits = [
            line for line in self.kept if start <= line.time_ns < end and labels.items() <= dict(line.labels).items()
        ]
        if backward:
            fits.reverse()
        fits.sort(key=lambda line: line.time_ns, reverse=backward)
        streams: dict[str, list[list[str]]] = defaultdict(list)
        for line in fits[:limit]:
            streams[json.dumps(line.labels)].append([str(line.time_ns), line.text])
        result = [{"stream": json.loads(own), "values": values} for own, values in streams.items()]
        return {"status": "success", "data": {"resultType": "streams", "result": result, "stats": {}}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        loki = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                params = dict(parse_qsl(parts.query, strict_parsing=True))
                loki.asked.append(params)
                loki.headers.append(dict(self.headers))
                if loki.stall is not None:
                    loki.stall.wait(30)
                if parts.path != "/loki/api/v1/query_range":
                    self._send(404, b"404 page not found\n")
                elif loki.refuse:
                    status, text = loki.refuse.pop(0)
                    self._send(status, text.encode())
                else:
                    try:
                        self._send(200, json.dumps(loki.answer(params)).encode())
                    except BadQuestion as error:
                        self._send(400, str(error).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path != "/otlp/v1/logs":
                    self._send(404, b"404 page not found\n")
                elif loki.refuse_push:
                    self._send(loki.refuse_push.pop(0), b"")
                else:
                    loki.push_headers.append(dict(self.headers))
                    loki.kept += _pushed(json.loads(body))
                    self._send(204, b"")

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _pushed(logs: dict[str, Any]) -> Iterator[Kept]:
    for resource in logs["resourceLogs"]:
        own = _attributes(resource["resource"])
        for scope in resource["scopeLogs"]:
            for record in scope["logRecords"]:
                text = record["body"].get("stringValue", "")
                moment = record.get("timeUnixNano") or record["observedTimeUnixNano"]
                yield Kept(int(moment), text, own | _attributes(record))


def _attributes(of: dict[str, Any]) -> dict[str, str]:
    """Loki writes all but letters and digits as an underscore."""
    return {re.sub(r"\W", "_", one["key"]): str(next(iter(one["value"].values()))) for one in of.get("attributes", ())}


def _labels(query: str) -> dict[str, str]:
    if not _QUERY.fullmatch(query):
        raise BadQuestion(f"parse error: {query}")
    return {name: json.loads(f'"{value}"') for name, value in re.findall(_PAIR, query)}
