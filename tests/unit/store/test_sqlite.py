import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from batuta.core.event import TimePassed
from batuta.store.errors import StoreBusyError, StoreCorruptError, StoreError, StoreFullError, StoreUnavailableError
from batuta.store.journal import JournalWriter
from batuta.store.records import Settings
from batuta.store.sqlite import SqliteDatabase, translate_errors
from batuta.store.store import SqliteStore
from tests.support.deep import deep
from tests.support.descriptors import no_descriptor_left
from tests.support.stored_form import empty_log
from tests.support.stories import Story

PUT = Settings.PUT


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def database(path):
    with closing(SqliteDatabase(path)) as database:
        yield database


@contextmanager
def journal_at(path: Path) -> Iterator[JournalWriter]:
    with SqliteStore(path) as store:
        yield store.journal


def file_of(journal: JournalWriter) -> SqliteDatabase:
    assert isinstance(journal.database, SqliteDatabase)
    return journal.database


def pragma(database: SqliteDatabase, name: str) -> object:
    assert database._writer is not None
    return database._writer.execute(f"PRAGMA {name}").fetchone()[0]


def test_what_is_committed_survives_a_loss_of_power(database):
    assert pragma(database, "journal_mode") == "wal"
    assert pragma(database, "synchronous") == 2, "FULL: the log is synced at every commit"
    assert pragma(database, "fullfsync") == 1
    assert pragma(database, "auto_vacuum") == 2, "INCREMENTAL: what is pruned is given back"
    assert pragma(database, "busy_timeout") == 5000
    assert pragma(database, "application_id") == 0x42415455


def test_only_its_owner_may_read_it(database, path):
    database.write_now([(PUT, ("a", "b"))])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_staged_statements_become_durable_together(database):
    database.stage([(PUT, ("a", "1"))], "a", "1")
    database.stage([(PUT, ("b", "2"))])
    assert database.staged_value("a") == "1"
    assert database.rows("SELECT * FROM settings") == []
    database.commit()
    assert database.rows("SELECT * FROM settings") == [("a", "1"), ("b", "2")]
    assert database.staged_value("a") is None
    database.commit()


def test_a_commit_that_fails_writes_nothing_and_forgets_nothing(database):
    database.stage([(PUT, ("a", "1")), ("INSERT INTO nowhere VALUES (1)", ())])
    with pytest.raises(StoreError, match="nowhere"):
        database.commit()
    assert database.rows("SELECT * FROM settings") == []
    database.write_now([(PUT, ("b", "2")), ("CREATE TABLE nowhere (number)", ())])
    assert database.rows("SELECT * FROM settings") == [("b", "2")]
    database.commit()
    assert database.rows("SELECT * FROM settings") == [("a", "1"), ("b", "2")]


# ------------------------------------------------------------------------------------------------ other users


def test_readers_in_other_threads_see_whole_commits_while_it_is_written(path):
    """Every reader finds a journal without a gap that ends with a commit, and never goes back."""
    with journal_at(path) as journal:
        done, faults = threading.Event(), []

        def watch() -> None:
            try:
                last = 0
                while not done.is_set():
                    seqs = [entry.seq for entry in journal.read(1, 10_000)]
                    assert seqs == list(range(1, len(seqs) + 1))
                    assert len(seqs) >= last
                    assert len(seqs) % 7 == 0
                    last = len(seqs)
            except BaseException as error:
                faults.append(error)
                raise

        threads = [threading.Thread(target=watch) for _ in range(3)]
        for thread in threads:
            thread.start()
        for k, event in enumerate(Story(1), 1):
            journal.append(event)
            if k % 7 == 0:
                journal.commit()
            if k == 700:
                break
        done.set()
        for thread in threads:
            thread.join()
        assert not faults
        assert journal.durable_seq == 700


def test_every_thread_has_a_connection_of_its_own_and_it_goes_with_the_thread(database):
    mine, found, open_files = database.reader(), [], []
    assert database.reader() is mine
    for _ in range(30):
        thread = threading.Thread(target=lambda: found.append(database.reader() is not mine))
        thread.start()
        thread.join()
        if Path("/proc/self/fd").exists():
            open_files.append(len(os.listdir("/proc/self/fd")))
    assert found == [True] * 30
    assert not open_files or open_files[-1] <= open_files[2]


def test_a_reader_cannot_write(database):
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.reader().execute("DELETE FROM settings")


def test_a_file_that_no_descriptor_is_left_for_is_unavailable_and_not_damaged(database):
    """The engine waits for such a store. It must not take it for one that can never be read."""
    with ThreadPoolExecutor(1) as other:  # a thread has a connection of its own, which is not open yet
        ask = partial(database.row, "SELECT count(*) FROM sqlite_master")
        with no_descriptor_left(), pytest.raises(StoreUnavailableError, match="are descriptors left"):
            other.submit(ask).result()
        assert other.submit(ask).result()[0] > 0


def test_a_file_that_is_not_there_is_no_passing_trouble(path):
    with pytest.raises(StoreError) as found, translate_errors(path):
        sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert not isinstance(found.value, StoreUnavailableError)


def test_another_process_reads_while_the_server_runs(database, path):
    database.write_now([(PUT, ("policy", "fifo"))])
    program = (
        "import sys; from batuta.store.sqlite import SqliteDatabase; "
        "d = SqliteDatabase(sys.argv[1], read_only=True); "
        "print(d.rows('SELECT value FROM settings')[0][0]); d.close()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "fifo\n"
    reader = SqliteDatabase(path, read_only=True)
    with closing(reader), pytest.raises(StoreError, match="reading only"):
        reader.write_now([(PUT, ("a", "b"))])


def test_a_writer_that_does_not_let_go_is_reported(path):
    with closing(SqliteDatabase(path, busy_timeout_s=0.05)) as database:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        database.stage([(PUT, ("a", "1"))])
        with pytest.raises(StoreBusyError, match="another process"):
            database.commit()
        other.execute("ROLLBACK")
        other.close()
        database.commit()
        assert database.rows("SELECT value FROM settings") == [("1",)]


def test_a_closed_database_says_so(path):
    database = SqliteDatabase(path)
    database.close()
    database.close()
    with pytest.raises(StoreError, match="closed"):
        database.rows("SELECT 1")
    database.stage([(PUT, ("a", "1"))])
    with pytest.raises(StoreError, match="closed"):
        database.commit()


# -------------------------------------------------------------------------------------------------- full disk


def fill(journal: JournalWriter, events) -> None:
    for event in events:
        journal.append(event)
        journal.commit()


def test_a_full_database_takes_nothing_half(path):
    with journal_at(path) as journal:
        database, story = file_of(journal), iter(Story(1))
        assert database._writer is not None
        database._writer.execute(f"PRAGMA max_page_count = {int(pragma(database, 'page_count')) + 8}")  # type: ignore[call-overload]
        with pytest.raises(StoreFullError, match=r"no room left for .*journal\.db"):
            fill(journal, story)
        durable, last = journal.durable_seq, journal.last_seq
        assert durable == last - 1
        assert [entry.seq for entry in journal.read()] == list(range(1, durable + 1))
        journal.append(TimePassed(1e6))
        with pytest.raises(StoreFullError):
            journal.commit()
        # Somebody has made room: what was appended meanwhile is not lost.
        database._writer.execute("PRAGMA max_page_count = 100000")
        assert journal.commit() == last + 1
        assert journal.read(last + 1)[0].event == TimePassed(1e6)
    check_story(path, last)


def check_story(path: Path, count: int) -> None:
    with journal_at(path) as journal:
        entries = journal.read(limit=count)
        assert [entry.seq for entry in entries] == list(range(1, count + 1))
        for entry, event in zip(entries, Story(1), strict=False):
            assert deep(entry.event) == deep(event)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB. Only root may make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_takes_nothing_half(small_disk):
    path = small_disk / "journal.db"
    ballast = small_disk / "ballast"
    with journal_at(path) as journal:
        ballast.write_bytes(b"\0" * 300_000)
        story = iter(Story(1))
        with pytest.raises(StoreFullError, match="make room on the disk"):
            fill(journal, story)
        durable, last = journal.durable_seq, journal.last_seq
        assert 0 < durable == last - 1
        assert [entry.seq for entry in journal.read(limit=10_000)] == list(range(1, durable + 1))
        with pytest.raises(StoreFullError):
            journal.commit()
        ballast.unlink()
        assert journal.commit() == last
        for _ in range(20):
            journal.append(next(story))
        assert journal.commit() == last + 20
    check_story(path, last + 20)


def test_a_disk_without_room_for_a_journal(small_disk):
    (small_disk / "ballast").write_bytes(b"\0" * (1 << 20))
    with pytest.raises(StoreFullError):
        SqliteDatabase(small_disk / "journal.db")
    (small_disk / "ballast").unlink()
    with journal_at(small_disk / "journal.db") as journal:
        journal.append(TimePassed(1.0))
        assert journal.commit() == 1


# ----------------------------------------------------------------------------------------------------- damage


def test_a_file_that_is_no_database(path):
    path.write_text("Dear diary, today I was a text file.\n" * 100)
    with pytest.raises(StoreCorruptError, match=r"journal\.db is damaged: file is not a database\. .*batuta restore"):
        SqliteDatabase(path)
    assert path.read_text().startswith("Dear diary")


def test_a_database_of_somebody_else(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE poems (text)")
    other.commit()
    other.close()
    with pytest.raises(StoreCorruptError, match="none of Batuta's"):
        SqliteDatabase(path)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pages_are_found_at_the_start(path, seed):
    with journal_at(path) as journal:
        fill(journal, [event for _, event in zip(range(300), Story(seed), strict=False)])
        empty_log(path)
    content, chance = bytearray(path.read_bytes()), Random(seed)
    pages = len(content) // 4096
    for page in chance.sample(range(3, pages), pages // 2):
        content[page * 4096 : page * 4096 + 512] = chance.randbytes(512)
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match=r"is damaged: .*batuta restore FILE"):
        SqliteDatabase(path)


def test_a_file_cut_short(path):
    with journal_at(path) as journal:
        fill(journal, [event for _, event in zip(range(300), Story(1), strict=False)])
        empty_log(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreCorruptError, match="is damaged"):
        SqliteDatabase(path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match=r"cannot create .*No such file"):
        SqliteDatabase(tmp_path / "nowhere" / "journal.db")
    with pytest.raises(StoreError, match="unable to open"):
        SqliteDatabase(tmp_path / "nowhere" / "journal.db", read_only=True)


def test_a_path_with_odd_characters(tmp_path):
    folder = tmp_path / "a b?c#d%e&ü"
    folder.mkdir()
    with closing(SqliteDatabase(folder / "journal.db")) as database:
        database.write_now([(PUT, ("a", "1"))])
        assert database.rows("SELECT value FROM settings") == [("1",)]
