"""A full disk: changes are refused with 507, reading goes on, and nothing is lost. Shortages are told as such."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batuta.api.routes import jobs
from batuta.core.event import Event
from batuta.store.errors import StoreCorruptError, StoreError, StoreFullError, StoreUnavailableError
from batuta.store.store import SqliteStore
from tests.support.served_api import SLEEPER, ServedApi, served_api, until


class FullDisk:
    """A journal that cannot be written as long as `full` is set."""

    def __init__(self, store: SqliteStore) -> None:
        self._journal = store.journal
        self.full = threading.Event()

    def append(self, event: Event) -> None:
        self._journal.append(event)

    def commit(self) -> int:
        if self.full.is_set():
            raise StoreFullError("no room left for journal.db")
        return self._journal.commit()


@pytest.fixture
def disk() -> list[FullDisk]:
    return []


@pytest.fixture
def api(tmp_path: Path, disk: list[FullDisk]) -> Iterator[ServedApi]:
    def journal_of(store: SqliteStore) -> FullDisk:
        disk.append(FullDisk(store))
        return disk[0]

    with served_api(tmp_path, journal_of=journal_of) as served:
        yield served


def test_changes_are_refused_and_reading_goes_on(api: ServedApi, disk: list[FullDisk]) -> None:
    api.submit()
    api.wait_for("1", "RUNNING")
    disk[0].full.set()
    begun = time.monotonic()
    key = {"Idempotency-Key": "k"}
    first = api.ask("POST", "/jobs", json={"task": SLEEPER}, headers=key)
    assert first.status_code == 507
    assert "no room left" in first.json()["detail"]
    assert time.monotonic() - begun < 12, "nobody waits until there is room"
    for method, path, body in (
        *(("POST", "/jobs", {"task": SLEEPER}), ("DELETE", "/jobs/1", None)),
        *(("PATCH", "/jobs/1", {"priority": 1}), ("PUT", "/policy", {"name": "fifo"})),
        *(("POST", "/nodes/node-0/cordon", None), ("PUT", "/queues/q", {})),
    ):
        answer = api.ask(method, path, json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (507, "5")
    assert api.get("/jobs/1")["state"] == "RUNNING"
    assert "no room left" in api.get("/cluster")["trouble"]
    assert api.get("/jobs")["total"] >= 1
    assert api.get("/healthz", None)
    ready = api.ask("GET", "/readyz", None)
    assert (ready.status_code, ready.json()["detail"]) == (503, "no room left for journal.db")
    assert api.get("/jobs/1/explain")["story"]
    disk[0].full.clear()
    until(lambda: api.ask("GET", "/readyz", None).status_code == 200)
    # What was asked for meanwhile was kept: the same key finds it.
    again = api.ask("POST", "/jobs", json={"task": SLEEPER}, headers=key)
    assert (again.status_code, again.json()["job"]["id"]) == (200, "2")


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (OSError(errno.EMFILE, "open"), 503, "this machine has run short: Too many open files"),
        (OSError(errno.ENOMEM, "mmap"), 503, "this machine has run short: Cannot allocate memory"),
        (OSError(errno.ENOSPC, "write"), 503, "this machine has run short: No space left on device"),
        (
            StoreError("journal.db: disk I/O error"),
            503,
            "what is stored cannot be read now: journal.db: disk I/O error",
        ),
        (StoreUnavailableError("no descriptor"), 507, "nothing can be stored now: no descriptor"),
    ],
)
def test_shortage_of_the_machine_passes_and_is_no_fault_of_the_server(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, detail: str
) -> None:
    with monkeypatch.context() as short:
        short.setattr(jobs, "page_of_jobs", raising(error))
        answer = api.ask("GET", "/jobs")
    assert (answer.status_code, answer.headers.get("retry-after"), answer.json()["detail"]) == (status, "5", detail)
    assert api.get("/jobs")["total"] == 0


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "close"), StoreCorruptError("journal.db is damaged")])
def test_what_does_not_pass_is_not_to_be_asked_for_again(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(jobs, "page_of_jobs", raising(error))
    answer = api.ask("GET", "/jobs")
    assert (answer.status_code, answer.headers.get("retry-after")) == (500, None)


def raising(error: Exception) -> Callable[..., bytes]:
    def fail(*_: object) -> bytes:
        raise error

    return fail


def test_an_engine_that_died_is_told(api: ServedApi) -> None:
    api.submit()

    def explode(*_: object) -> None:
        raise RuntimeError("boom")

    api.live.backend.next_events = explode  # type: ignore[method-assign, assignment]
    api.live.backend.wake()
    until(lambda: not api.live.service.running)
    assert "boom" in api.get("/cluster")["trouble"]
    assert api.ask("GET", "/readyz", None).status_code == 503
    assert api.ask("POST", "/jobs", json={"task": SLEEPER}).status_code in (503, 507)
    assert api.get("/jobs")["total"] == 1
