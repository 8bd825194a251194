"""The API on a real socket, and a client for it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from batuta.api.app import ApiServer
from tests.support.live_service import LiveService, live_service

SLEEPER = "name: sleeper\nresources: {accelerators: virtual:1}\nrun: sleep 1000\n"
ELASTIC = """
name: elastic
num_nodes: 2
resources: {accelerators: virtual:1}
secrets: {HF_TOKEN: hush-hush}
run: torchrun train.py
elastic: {min_nodes: 1, max_nodes: 4, checkpoint: on-signal}
"""


@dataclass(slots=True)
class ServedApi:
    """A server that listens, and whoever asks it."""

    live: LiveService
    url: str
    http: httpx2.Client

    def ask(self, method: str, path: str, user: str | None = "ana", **more: Any) -> httpx2.Response:
        headers = self.live.headers(user) if user else {}
        headers |= more.pop("headers", {})
        full = path if path.startswith(("/metrics", "/healthz", "/readyz", "/login")) else f"/api/v1{path}"
        return self.http.request(method, full, headers=headers, **more)

    def get(self, path: str, user: str | None = "ana", **more: Any) -> Any:
        answer = self.ask("GET", path, user, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def submit(self, task: str = SLEEPER, user: str = "ana", **headers: str) -> dict[str, Any]:
        answer = self.ask("POST", "/jobs", user, content=task, headers={"Content-Type": "application/yaml", **headers})
        assert answer.status_code in (200, 201), answer.text
        return answer.json()["job"]

    def job(self, job: str) -> dict[str, Any]:
        return self.get(f"/jobs/{job}")

    def wait_for(self, job: str, state: str) -> dict[str, Any]:
        return until(lambda: shown if (shown := self.job(job))["state"] == state else None)


def until(look: Callable[[], Any], within_s: float = 10.0) -> Any:
    """What `look` finds, as soon as it finds something."""
    give_up = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < give_up, "this should have happened by now"
        time.sleep(0.01)


@contextmanager
def listening(live: LiveService) -> Iterator[str]:
    """The app on a free port of loopback; its URL."""
    server = ApiServer(live.app, "127.0.0.1", 0)
    # Whoever does not end its streams is found out below.
    server.config.timeout_graceful_shutdown = 60
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"


@contextmanager
def served_api(folder: Path, **options: Any) -> Iterator[ServedApi]:
    with (
        live_service(folder, **options) as live,
        listening(live) as url,
        httpx2.Client(base_url=url, timeout=20) as http,
    ):
        yield ServedApi(live, url, http)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """A server-sent event as a reader gets it; without a type it was only a comment or a place."""

    seq: str
    type: str
    data: Any


@contextmanager
def stream_of(
    api: ServedApi, path: str = "/events", user: str = "ana", **headers: str
) -> Iterator[Iterator[SentEvent]]:
    with api.http.stream("GET", f"/api/v1{path}", headers=api.live.headers(user) | headers) as answer:
        assert answer.status_code == 200
        yield _sent_events(answer.iter_lines())


def _sent_events(lines: Iterator[str]) -> Iterator[SentEvent]:
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            data = json.loads(fields["data"]) if "data" in fields else None
            yield SentEvent(fields.get("id", ""), fields.get("event", ""), data)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
