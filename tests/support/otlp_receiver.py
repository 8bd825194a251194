"""A receiver of OTLP/HTTP on loopback that does as it is told: takes, refuses, is slow, or never answers."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """What came, and what is answered to it."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers; 200 when there are none left."""
    retry_after: str = ""
    body: bytes = b"{}"
    hangs: bool = False
    may_answer: threading.Event = field(default_factory=threading.Event)
    """An answer that hangs comes when this is set."""
    requests: list[dict] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)

    def spans(self) -> list[dict]:
        """Those of requests that were taken."""
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def wait_for(self, count: int, within_s: float = 20.0) -> bool:
        """Until so many requests have come, taken or not."""
        with self.came:
            return self.came.wait_for(lambda: len(self.paths) >= count, within_s)

    def wait_for_span(self, name: str, within_s: float = 20.0) -> bool:
        with self.came:
            return self.came.wait_for(lambda: any(one["name"] == name for one in self.spans()), within_s)


def attributes_of(span: dict) -> dict[str, object]:
    """Plain values by name."""
    found: dict[str, object] = {}
    for one in span["attributes"]:
        ((kind, value),) = one["value"].items()
        found[one["key"]] = int(value) if kind == "intValue" else value
    return found


@contextmanager
def receiving(**told) -> Iterator[Receiver]:
    """A receiver, as long as the block lasts."""
    receiver = Receiver(**told)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with receiver.came:
                receiver.paths.append(self.path)
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.came.notify_all()
            if receiver.hangs:
                receiver.may_answer.wait(30.0)
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            if status == 200:
                with receiver.came:
                    receiver.requests.append(json.loads(body))
                    receiver.came.notify_all()
            self.send_response(status)
            if receiver.retry_after:
                self.send_header("Retry-After", receiver.retry_after)
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        def handle(self) -> None:
            with suppress(OSError):  # whoever asked has gone
                super().handle()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


def refusing_url() -> str:
    """A URL of loopback at which nobody listens."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{own.getsockname()[1]}"
