"""Copies of a journal in a file: made while a server writes it, verified, and brought back.

A backup is an SQLite file with all that is durable beside the jobs' folders: events, snapshots, tasks, results,
settings, hashes of tokens, and the journal's id. It has no checkpoints, no logs and no token in plain text.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from batuta.store.errors import StateDirError, StoreCorruptError, StoreError
from batuta.store.identity import JobFolder, Mismatch, StateMark, adopt, find_mismatch, set_aside
from batuta.store.journal import JournalReader
from batuta.store.sqlite import SqliteDatabase, translate_errors
from batuta.store.state_dir import StateDir, sync_folder
from batuta.store.store import SqliteStore


@dataclass(frozen=True, slots=True)
class Backup:
    """What is in a backup."""

    journal: str  # the journal's id
    first_seq: int
    last_seq: int
    bytes: int


def back_up(journal: Path, target: Path, *, replace: bool = False) -> Backup:
    """Copy a journal as it is at this moment to a file that only its owner may read, and verify the copy.

    The server may go on writing. A file that is there is left alone, unless it may be replaced.
    """
    if not journal.is_file():
        raise StoreError(f"there is no journal at {journal}: no server was ever started there")
    if target.exists() and (not replace or target.samefile(journal)):
        raise StoreError(f"{target} is there already: name another file, or add --replace")
    with _draft(target) as draft:
        with translate_errors(journal), closing(_open(journal)) as source, closing(sqlite3.connect(draft)) as copy:
            # In one step: one transaction sees one state, however much is written meanwhile.
            source.backup(copy, pages=-1)
            # One file, without a log beside it.
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        found = examine(draft)
        _sync(draft)
        draft.replace(target)
        sync_folder(target.parent)
    return found


def _open(journal: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def examine(path: Path) -> Backup:
    """Check a backup for damage, every event of it; return what is in it. StoreError says what is wrong."""
    with closing(SqliteDatabase(path, read_only=True)) as database:
        damage = [row[0] for row in database.rows("PRAGMA quick_check(3)")]
        if damage != ["ok"]:
            raise StoreCorruptError(f"{path} is damaged: {'; '.join(damage)[:200]}. Take another backup.")
        reader = JournalReader(database)
        reader.verify()
        return Backup(reader.id, reader.first_seq, reader.durable_seq, path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Restored:
    """What was brought back, where the journal is that was there before, and which folders do not match."""

    backup: Backup
    aside: Path | None
    mismatch: Mismatch


def restore(source: Path, state: StateDir, folders: Sequence[JobFolder], *, replace: bool = False) -> Restored:
    """Make a backup the journal of a state directory, whose lock the caller holds.

    It is verified and replayed first. A journal that is there is set aside if it may be replaced, never deleted.
    """
    if not source.is_file():
        raise StoreError(f"there is no file {source}")
    left = [path for end in ("", "-wal", "-shm") if (path := Path(f"{state.journal}{end}")).exists()]
    if state.journal.exists() and not replace:
        raise StateDirError(f"{state.path} has a journal: add --replace to set it aside, or use another --home")
    mark = StateMark(state)
    with _draft(state.journal) as draft:
        try:
            shutil.copyfile(source, draft)
        except OSError as error:
            raise StoreError(f"cannot copy {source}: {error.strerror}") from error
        with SqliteStore(draft) as store:  # brings the schema up to date
            store.journal.verify()
            store.recover()
            found = find_mismatch(None, store.journal.id, store.journal.durable_seq, folders, store.tasks.has)
        backup = examine(draft)
        _sync(draft)
        aside = set_aside(state, left) if left else None
        draft.replace(state.journal)
        sync_folder(state.path)
    adopt(mark, backup.journal, backup.last_seq)
    return Restored(backup, aside, found)


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A file beside the target that only its owner may read; removed unless it was renamed."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"cannot write to {target.parent}: {error.strerror}") from error
    try:
        yield draft
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                os.unlink(f"{draft}{end}")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
