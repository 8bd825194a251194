"""A journal is copied while it is written, and brought back only if it is whole."""

import stat
import threading
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from batuta.core.event import TimePassed
from batuta.store.backup import back_up, examine, restore
from batuta.store.errors import DamagedRowError, StateDirError, StoreCorruptError, StoreError
from batuta.store.identity import JobFolder, StateMark, adopt
from batuta.store.records import Role
from batuta.store.state_dir import StateDir
from batuta.store.store import SqliteStore
from tests.support.deep import deep
from tests.support.stories import Story


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "home")
    state.prepare(0)
    return state


def write(store: SqliteStore, count: int, seed: int = 1) -> None:
    for event in islice(Story(seed), count):
        store.journal.append(event)
    store.journal.commit()


@pytest.fixture
def backup(state: StateDir, tmp_path: Path) -> Path:
    """Of a journal with 300 events, which goes on to 320 afterwards."""
    with SqliteStore(state.journal) as store:
        adopt(StateMark(state), store.journal.id, 0)
        write(store, 300)
        store.tasks.stage("1", "{}")
        store.journal.commit()
        store.tokens.create("ana", Role.USER, 1.0)
        back_up(state.journal, tmp_path / "backup.db")
        for _ in range(20):
            store.journal.append(TimePassed(1e9))
        StateMark(state).reached(store.journal.commit())
    return tmp_path / "backup.db"


def test_a_backup_is_one_private_file_with_all_that_was_durable(backup: Path, state: StateDir):
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert sorted(path.name for path in backup.parent.iterdir()) == ["backup.db", "home"]
    found = examine(backup)
    assert (found.first_seq, found.last_seq) == (1, 300)
    with SqliteStore(state.journal) as store, SqliteStore(backup) as copy:
        assert copy.journal.id == store.journal.id == found.journal
        assert [token.user for token in copy.tokens.all()] == ["ana"]
        assert [deep(one) for one in copy.journal.read()] == [deep(one) for one in store.journal.read(limit=300)]


def test_a_backup_of_a_journal_that_is_being_written_is_whole(state: StateDir, tmp_path: Path):
    stop = threading.Event()
    with SqliteStore(state.journal) as store:

        def keep_writing() -> None:
            while not stop.is_set():
                for _ in range(7):
                    store.journal.append(TimePassed(1.0))
                store.journal.commit()

        writer = threading.Thread(target=keep_writing)
        writer.start()
        try:
            last = [back_up(state.journal, tmp_path / f"{n}.db").last_seq for n in range(5)]
        finally:
            stop.set()
            writer.join()
    assert last == sorted(last)
    assert all(seq % 7 == 0 for seq in last), "half a transaction was copied"


def test_a_file_that_is_there_is_not_overwritten(backup: Path, state: StateDir):
    before = backup.read_bytes()
    with pytest.raises(StoreError, match="there already"):
        back_up(state.journal, backup)
    assert backup.read_bytes() == before
    assert back_up(state.journal, backup, replace=True).last_seq == 320
    with pytest.raises(StoreError, match="there already"):
        back_up(state.journal, state.journal, replace=True)


def test_a_damaged_journal_makes_no_backup(state: StateDir, tmp_path: Path):
    with SqliteStore(state.journal) as store:
        write(store, 50)
        store.database.write_now([("UPDATE events SET time_s = 0 WHERE seq = 9", ())])
        with pytest.raises(DamagedRowError, match="event 9 of"):
            back_up(state.journal, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


def test_a_journal_is_replaced_only_if_that_was_said_and_is_kept(backup: Path, state: StateDir):
    with pytest.raises(StateDirError, match="has a journal: add --replace"):
        restore(backup, state, [])
    done = restore(backup, state, [], replace=True)
    assert done.backup.last_seq == 300
    assert done.aside is not None
    with SqliteStore(state.journal) as store, SqliteStore(done.aside / "journal.db") as former:
        assert (store.journal.durable_seq, former.journal.durable_seq) == (300, 320)
        mark = StateMark(state).found
        assert mark is not None
        assert (mark.journal, mark.seq) == (store.journal.id, 300)


def test_numbers_of_jobs_since_the_backup_are_not_used_again(backup: Path, state: StateDir):
    assert StateMark(state).take_number(7) == 7
    restore(backup, state, [], replace=True)
    assert StateMark(state).take_number(2) > 7


def test_folders_that_the_backup_does_not_know_are_named(backup: Path, state: StateDir):
    folders = [JobFolder(job, state.jobs / job, examine(backup).journal) for job in ("1", "2")]
    done = restore(backup, state, folders, replace=True)
    assert [stray.job for stray in done.mismatch.strays] == ["2"]


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_damaged_backup_is_refused_and_the_journal_stays(backup: Path, state: StateDir, place: float):
    data = bytearray(backup.read_bytes())
    at = data.index(b'"time_s"', int(len(data) * place)) + 10
    data[at] ^= 1
    backup.write_bytes(data)
    with pytest.raises((DamagedRowError, StoreCorruptError), match="damaged"):
        restore(backup, state, [], replace=True)
    with SqliteStore(state.journal) as store:
        assert store.journal.durable_seq == 320
    assert sorted(path.name for path in state.path.iterdir()) == ["jobs", "journal.db", "mark"]


def test_no_flipped_bit_is_read_as_if_it_had_been_written(backup: Path, tmp_path: Path):
    """Each start either says what is damaged, or finds all events and tasks as they were."""
    data, chance = backup.read_bytes(), Random(16)

    def content(path: Path) -> tuple[object, ...]:
        with SqliteStore(path) as store:
            return store.journal.texts_after(0), store.tasks.get("1"), deep(store.recover().world)

    before, told = content(backup), list[str]()
    for k in range(48):
        damaged, path = bytearray(data), tmp_path / f"damaged-{k}.db"
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            assert content(path) == before, "it was read as if it had been written"
        except StoreError as error:
            told.append(str(error))
    assert len(told) >= 16
    assert sum("damaged" in one for one in told) > 0.9 * len(told), told


def test_what_is_no_backup_is_refused(state: StateDir, tmp_path: Path):
    (tmp_path / "text").write_text("not a database, and long enough not to be taken for an empty one" * 100)
    with pytest.raises(StoreCorruptError, match="not a database"):
        restore(tmp_path / "text", state, [])
    with pytest.raises(StoreError, match="no file"):
        restore(tmp_path / "nothing", state, [])
    assert not state.journal.exists()
