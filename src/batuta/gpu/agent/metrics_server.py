"""The port of an agent: metrics for Prometheus, and probes for its kubelet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final

_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"
_SLOW_CLIENT_S: Final = 10.0


class MetricsServer:
    """Listens from the moment that it is made, and answers for as long as the `with` lasts."""

    def __init__(
        self, host: str, port: int, metrics: Callable[[], str], trouble: Callable[[], str] = str
    ) -> None:
        """`trouble` says what is wrong; empty while nothing is. OSError where the port is taken."""

        class Handler(_Handler):
            pages = {"/metrics": metrics}  # noqa: RUF012 - one server has one set of pages
            health = staticmethod(trouble)

        self._server = (_Server6 if ":" in host else _Server)((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="batuta-metrics", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Who still reads when the agent ends does not hold it up.
    block_on_close = False


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, Callable[[], str]]
    health: Callable[[], str]
    timeout = _SLOW_CLIENT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.pages:
            self._answer(200, self.pages[path](), _METRICS)
        elif path in ("/healthz", "/readyz"):
            trouble = self.health()
            self._answer(503 if trouble else 200, trouble or "ok")
        else:
            self._answer(404, "not found")

    def _answer(self, status: int, text: str, kind: str = _PLAIN) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a probe every few seconds is no news."""
