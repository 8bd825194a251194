"""Places for a journal, one of each kind: what holds for one store has to hold for the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batuta.store.database import Database
from batuta.store.journal import event_crc
from batuta.store.store import Store, is_url, open_store
from tests.support.postgres import PostgresServer, started_server


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is. It can be opened, closed and opened again."""

    address: str

    def open(self) -> Store:
        return open_store(self.address)

    @property
    def is_file(self) -> bool:
        return not is_url(self.address)


def rewrite_event(database: Database, seq: int, body: str) -> None:
    """Give an event another text, with the checksum of it: as a version would that writes another form."""
    ((time_s, job),) = database.rows("SELECT time_s, job FROM events WHERE seq = ?", seq)
    crc = event_crc(seq, time_s, job, body)
    database.write_now([("UPDATE events SET body = ?, crc = ? WHERE seq = ?", (body, crc, seq))])


@pytest.fixture(scope="session")
def session_server() -> Iterator[PostgresServer]:
    server = started_server()
    yield server
    server.remove()


@pytest.fixture
def server(session_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server of all tests. Each may stop or kill it: the next finds it running."""
    yield session_server
    if not session_server.is_running:
        session_server.start()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(str(tmp_path / "journal.db"))
    server: PostgresServer = request.getfixturevalue("server")
    return Place(server.url())


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    with place.open() as opened:
        yield opened
