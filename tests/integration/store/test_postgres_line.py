"""A line that breaks, a server that goes away: nothing acknowledged is lost, nothing is written twice."""

import shutil
import subprocess
import threading
import time

import psycopg
import pytest

from batuta.core.event import TimePassed
from batuta.engine.ports import JournalUnavailable
from batuta.engine.service import RetryingJournal
from batuta.store.errors import (
    AlreadyRunningError,
    JournalRewoundError,
    StoreFullError,
    StoreUnavailableError,
    WriterReplacedError,
)
from batuta.store.postgres import PostgresStore
from batuta.store.store import Store, open_store
from tests.support.cut_line import Cut, CutLine
from tests.support.postgres import PostgresServer

PATIENCE_S = 20.0


@pytest.fixture
def line(server):
    with CutLine(server) as line:
        yield line


@pytest.fixture
def store(line):
    """A store behind a line that can be cut, with ten events in it."""
    with PostgresStore(line.url()) as store:
        append(store, *range(1, 11))
        yield store


@pytest.fixture
def direct(store, server):
    """The same journal, past the line."""
    return server.url(store.database.schema)


def append(store: Store, *times_s: float) -> int:
    for time_s in times_s:
        store.journal.append(TimePassed(float(time_s)))
    return store.journal.commit()


def times_of(store: Store) -> list[float]:
    return [entry.event.time_s for entry in store.journal.all_after()]


def say(server: PostgresServer, sql: str) -> list[tuple]:
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        answer = admin.execute(sql.encode())
        return answer.fetchall() if answer.description else []


def end_sessions(server: PostgresServer) -> None:
    """Ends all sessions, as an administrator may; returns when they are gone."""
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    say(server, f"SELECT pg_terminate_backend(pid, 10000) {others}")


def commit_patiently(store: Store) -> int:
    """Tries again until it is possible, as the engine does."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return store.journal.commit()
        except JournalUnavailable:
            assert time.monotonic() < give_up_s
            time.sleep(0.02)


# -------------------------------------------------------------------------------------------- one broken line


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.ANSWER])
def test_a_commit_on_a_line_that_breaks_is_there_once(store, line, cut):
    line.next = cut
    assert append(store, 11, 12) == 12
    assert line.was_cut.is_set()
    assert append(store, 13) == 13
    assert times_of(store) == list(map(float, range(1, 14)))


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.ANSWER])
def test_what_belongs_to_an_event_shares_its_fate(store, line, cut):
    line.next = cut
    store.results.stage("a", "1")
    assert store.idempotency.claim("key", "a", 1.0).is_new
    append(store, 11)
    assert line.was_cut.is_set()
    assert store.database.rows("SELECT * FROM results") == [("a", "1")]
    assert not store.idempotency.claim("key", "b", 2.0).is_new


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.ANSWER])
def test_what_is_written_at_once_is_there_once(store, line, cut):
    line.next = cut
    store.settings.put("policy", "fifo")
    assert line.was_cut.is_set()
    assert append(store, 11) == 11
    assert (store.settings.get("policy"), times_of(store)[-1]) == ("fifo", 11.0)


def test_a_number_that_got_lost_is_not_made_up(store, line):
    store.settings.put("policy", "fifo")
    line.next = Cut.ANSWER
    with pytest.raises(StoreUnavailableError, match="it was done"):
        store.settings.remove("policy")
    assert store.settings.get("policy") is None
    assert append(store, 11) == 11


def test_a_session_that_an_administrator_ended_is_replaced(store, server):
    assert len(times_of(store)) == 10
    end_sessions(server)
    assert len(times_of(store)) == 10, "a reader was replaced without a word"
    end_sessions(server)
    assert append(store, 11) == 11
    assert times_of(store)[-1] == 11.0


def test_the_lock_is_held_again_after_the_line_broke(store, server, direct):
    end_sessions(server)
    append(store, 11)
    with pytest.raises(AlreadyRunningError, match=r"another server writes to .*batuta .* pid \d+"):
        PostgresStore(direct, lock_wait_s=0.05)


def test_a_session_that_the_server_still_has_is_waited_for(store, line):
    """The answer is lost and the server does not know: while it has the lock, nothing is final."""
    line.next = Cut.SILENTLY
    with pytest.raises(StoreUnavailableError, match="has not ended this writer's last session"):
        append(store, 11)
    store.journal.append(TimePassed(12.0))
    line.forget_sessions()
    assert commit_patiently(store) == 12
    assert times_of(store) == list(map(float, range(1, 13)))


# ------------------------------------------------------------------------------------ a server that goes away


def test_while_the_server_is_away_all_waits_and_then_goes_on(store, server):
    server.stop()
    for time_s in (11, 12):
        with pytest.raises(StoreUnavailableError, match=r"postgresql://.*schema=journal_"):
            append(store, time_s)
    with pytest.raises(StoreUnavailableError, match="cannot connect"):
        store.journal.read()
    assert (store.journal.last_seq, store.journal.durable_seq) == (12, 10)
    server.start()
    store.journal.append(TimePassed(13.0))
    assert commit_patiently(store) == 13
    assert times_of(store) == list(map(float, range(1, 14)))


def test_connections_are_not_asked_for_too_often(store, line, server):
    server.stop()
    before, tries, give_up_s = line.connections, 0, time.monotonic() + 0.5
    while time.monotonic() < give_up_s:
        with pytest.raises(StoreUnavailableError):
            store.settings.put("a", "b")
        tries += 1
    assert tries > 100
    assert 1 <= line.connections - before < 10


def test_the_engine_s_journal_waits_for_the_server(store, server):
    """With the very class that keeps an engine waiting on a full disk."""
    patient = RetryingJournal(store.journal)
    server.kill()
    patient.append(TimePassed(11.0))
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(patient.commit()))
    thread.start()
    give_up_s = time.monotonic() + PATIENCE_S
    while not patient.trouble:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    assert "postgresql://" in patient.trouble
    server.start()
    thread.join(PATIENCE_S)
    assert (done, patient.trouble) == ([11], "")
    assert times_of(store) == list(map(float, range(1, 12)))


def test_a_commit_that_was_in_doubt_when_the_server_went_is_settled_later(store, line, server):
    """The answer is lost, and by the time that somebody could ask, nobody is there to answer."""
    line.next = Cut.SILENTLY
    failed = threading.Event()

    def commit() -> None:
        with pytest.raises(StoreUnavailableError):
            append(store, 11)
        failed.set()

    thread = threading.Thread(target=commit)
    thread.start()
    assert line.was_cut.wait(PATIENCE_S)
    server.kill()
    line.forget_sessions()
    assert failed.wait(PATIENCE_S)
    thread.join()
    store.journal.append(TimePassed(12.0))
    server.start()
    assert commit_patiently(store) == 12
    assert times_of(store) == list(map(float, range(1, 13)))


# -------------------------------------------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(server):
    """A tablespace of 2 MiB. Only root may make a file system for it."""
    folder = server.folder / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        folder.rmdir()
        pytest.skip("a small disk needs the right to mount")
    shutil.chown(folder, *(getattr(server.folder.stat(), name) for name in ("st_uid", "st_gid")))
    say(server, f"CREATE TABLESPACE small LOCATION '{folder}'")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(store: Store) -> None:
    for start in range(0, 100_000, 100):
        append(store, *range(start, start + 100))


def test_a_full_disk_takes_nothing_half(small_disk, server):
    url, ballast = server.url(), small_disk / "ballast"
    ballast.write_bytes(b"\0" * 1_000_000)
    with PostgresStore(f"{url}&options=-cdefault_tablespace%3Dsmall") as store:
        with pytest.raises(StoreFullError, match="make room on the server's disk"):
            fill(store)
        appended = store.journal.durable_seq
        assert times_of(store) == list(map(float, range(appended)))
        ballast.unlink()
        assert store.journal.commit() == appended + 100
        assert times_of(store) == list(map(float, range(appended + 100)))
    say(server, f"DROP SCHEMA {store.database.schema} CASCADE")
    say(server, "DROP TABLESPACE small")


# ------------------------------------------------------------------------------------------------ one writer


def test_who_was_replaced_while_cut_off_must_stop(store, server, direct):
    end_sessions(server)
    with open_store(direct) as successor:
        assert append(successor, 99) == 11
        store.journal.append(TimePassed(11.0))
        for _ in range(2):
            with pytest.raises(WriterReplacedError, match=r"another server has taken over .*this one stops"):
                store.journal.commit()
        assert not isinstance(WriterReplacedError("x"), JournalUnavailable), "nobody tries that again"
        assert append(successor, 100) == 12
        assert times_of(successor)[-2:] == [99.0, 100.0]


def test_who_was_replaced_must_stop_even_if_the_successor_is_gone(store, server, direct):
    """What it left behind is not what this one knows."""
    end_sessions(server)
    with open_store(direct) as successor:
        append(successor, 99)
    with pytest.raises(WriterReplacedError):
        append(store, 11)
    with open_store(direct) as third:
        assert times_of(third)[-1] == 99.0, "and who has stopped keeps no lock"


def test_a_writer_without_the_lock_is_found_out_by_its_term(store, server):
    """As behind a pool of connections that moves sessions about: the lock is not where it should be."""
    say(server, f"UPDATE {store.database.schema}.writer SET term = term + 1")
    with pytest.raises(WriterReplacedError):
        append(store, 11)
    assert len(times_of(store)) == 10


def test_a_database_that_has_forgotten_something_is_not_written_to(store, server):
    """As after a switch to a copy that was behind."""
    say(server, f"UPDATE {store.database.schema}.writer SET commits = commits - 1")
    end_sessions(server)
    with pytest.raises(JournalRewoundError, match="were acknowledged"):
        append(store, 11)
