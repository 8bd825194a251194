"""The part of a kubelet that gives out logs: what a test lets a pod print, the API server passes on."""

import ssl
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.kube.certificates import Authority
from tests.support.kube.control_plane import ControlPlane

ADDRESS = "127.0.0.1"
_LONGEST_S = 120.0


class FakeKubelet:
    """A context manager. Nodes that are given to it find their pods' logs here."""

    def __init__(self, folder: Path) -> None:
        pair = Authority(folder).server("kubelet", [ADDRESS], [])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._news = threading.Condition()
        self._printed: dict[str, bytes] = {}
        self._times: dict[str, list[datetime]] = {}
        """When each line was printed."""
        self._ended: set[str] = set()
        self._is_closing = False
        self._starts: dict[str, int] = {}
        self._server = ThreadingHTTPServer((ADDRESS, 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> "FakeKubelet":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._is_closing = True  # whoever still follows a log is sent away
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def serve(self, cluster: ControlPlane, nodes: Iterable[str]) -> None:
        """Sends the API server here for the logs of these nodes."""
        status = {
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        for node in nodes:
            cluster.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})

    def print(self, namespace: str, pod: str, text: str) -> None:
        """A pod prints some lines."""
        with self._news:
            key = f"{namespace}/{pod}"
            self._printed[key] = self._printed.get(key, b"") + text.encode()
            self._times.setdefault(key, []).extend(datetime.now(UTC) for _ in range(text.count("\n")))
            self._news.notify_all()

    def restart(self, namespace: str, pod: str) -> None:
        """Another pod has come under the same name: the log of the one before is over, and gone."""
        with self._news:
            key = f"{namespace}/{pod}"
            self._starts[key] = self._starts.get(key, 0) + 1
            self._printed.pop(key, None)
            self._times.pop(key, None)
            self._news.notify_all()

    def end(self, namespace: str, pod: str) -> None:
        """A pod will print no more."""
        with self._news:
            self._ended.add(f"{namespace}/{pod}")
            self._news.notify_all()

    def _now(self, key: str) -> tuple[int, bytes]:
        """Which pod of this name it is, and all that it has printed."""
        with self._news:
            return self._starts.get(key, 0), self._printed.get(key, b"")

    def _more(self, key: str, start: int, begin: int) -> bytes:
        """What comes after a position; nothing at the end of the pod."""
        with self._news:
            self._news.wait_for(
                lambda: (
                    self._starts.get(key, 0) != start
                    or self._is_closing
                    or key in self._ended
                    or len(self._printed.get(key, b"")) > begin
                ),
                _LONGEST_S,
            )
            return self._printed.get(key, b"")[begin:] if self._starts.get(key, 0) == start else b""

    def _dressed(self, key: str, begin: int, text: bytes, asked: dict[str, list[str]]) -> bytes:
        """Text that begins at a position, as it was asked for: since then, with a time before each line."""
        if "timestamps" not in asked:
            return text
        with self._news:
            first, times = self._printed.get(key, b"")[:begin].count(b"\n"), self._times.get(key, [])
        since = datetime.fromisoformat(asked["sinceTime"][0]) if "sinceTime" in asked else None
        return b"".join(
            f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() + line
            for time, line in zip(times[first:], text.splitlines(keepends=True), strict=False)
            if since is None or time >= since
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                _, what, namespace, pod, *_ = url.path.split("/")
                asked = parse_qs(url.query)
                if what != "containerLogs":
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                key, follow = f"{namespace}/{pod}", "follow" in asked
                start, log = kubelet._now(key)
                position = len(log)
                last = _last_lines(log, asked)
                self.wfile.write(kubelet._dressed(key, position - len(last), last, asked))
                self.wfile.flush()
                give_up = time.monotonic() + _LONGEST_S
                while follow and time.monotonic() < give_up:
                    more = kubelet._more(key, start, position)
                    if not more:
                        return
                    self.wfile.write(kubelet._dressed(key, position, more, asked))
                    position += len(more)
                    self.wfile.flush()

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        return Handler


def _last_lines(log: bytes, asked: dict[str, list[str]]) -> bytes:
    if "tailLines" not in asked:
        return log
    count = int(asked["tailLines"][0])
    return b"".join(log.splitlines(keepends=True)[-count:]) if count else b""
