"""Check that a journal is intact, that it does not grow too fast, and that the disk has space."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from batuta.engine.soundness import Finding, error, note, ok, warning
from batuta.store.errors import SchemaError, StoreError
from batuta.store.journal import JournalReader
from batuta.store.sqlite import APPLICATION_ID, SqliteDatabase

SLOW_BYTES = 512 << 20  # up to this size a check reads the whole journal; that takes a few seconds
LARGE_WAL_BYTES = 256 << 20  # SQLite checkpoints the write-ahead log at 64 MiB, unless a reader stays open for hours
LARGE_BYTES = 8 << 30
MUCH_PER_DAY = 5_000_000  # events; a cluster of ten thousand GPUs produces fewer
_STALE_EVENTS = 200_000  # a snapshot is due every 20,000 events: at ten times that, saving fails
_MOVE_AWAY = "batuta restore FILE --replace; or move it away with its -wal and -shm, and batuta up --set-aside"
_OPEN_S = 5.0


@dataclass(frozen=True, slots=True)
class JournalStats:
    """Size and range of a journal file."""

    bytes: int
    wal_bytes: int
    first_seq: int
    last_seq: int
    snapshot_seq: int
    seconds: float  # between the first event that is kept and the last


def check_journal(path: Path, *, full: bool = False) -> Iterator[Finding]:
    """Check a journal file for damage and growth, also while a server writes it; `full` reads large ones."""
    if not path.exists():
        yield note("journal", "there is none yet", "batuta up makes it")
        return
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_OPEN_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            yield from _check(connection, path, full)
    except sqlite3.DatabaseError as trouble:
        yield error("journal", f"cannot be read: {trouble}", _MOVE_AWAY)
    except OSError as trouble:
        yield error("journal", f"cannot be read: {trouble.strerror}", "see who may read it: ls -l")


def _check(connection: sqlite3.Connection, path: Path, full: bool) -> Iterator[Finding]:
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        yield error("journal", "the file is another program's, not a journal of Batuta's", _MOVE_AWAY)
        return
    facts = _facts(connection, path)
    if facts.bytes <= SLOW_BYTES or full:
        damage = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        if damage != ["ok"]:
            yield error("journal", f"is damaged: {'; '.join(damage)[:200]}", _MOVE_AWAY)
            return
        try:
            _verify(path)
        except StoreError as trouble:
            yield error("journal", str(trouble), _MOVE_AWAY)
            return
        yield ok("journal", f"sound: events {facts.first_seq:,} to {facts.last_seq:,}, {_size(facts.bytes)}")
    else:
        yield note("journal", f"{_size(facts.bytes)}: not looked through for damage", "batuta doctor --full")
    yield from _growth(facts)


def _verify(path: Path) -> None:
    """Check every event; a journal of another version is left to the server, which brings it up to date."""
    with suppress(SchemaError), closing(SqliteDatabase(path, read_only=True)) as database:
        JournalReader(database).verify()


def _growth(facts: JournalStats) -> Iterator[Finding]:
    check, count = "journal growth", max(0, facts.last_seq - facts.first_seq)
    per_day = count / max(facts.seconds / 86_400, 1 / 24)
    if facts.wal_bytes > LARGE_WAL_BYTES:
        yield warning(
            check,
            f"the write-ahead log has {_size(facts.wal_bytes)}: a reader does not end",
            "end what reads journal.db for long (a backup, a query), or start the server anew",
        )
    if facts.last_seq - facts.snapshot_seq > _STALE_EVENTS:
        yield warning(
            check,
            f"no snapshot since event {facts.snapshot_seq:,}: a start takes long",
            "see why in server.log (snapshots of the journal)",
        )
    if per_day > MUCH_PER_DAY or facts.bytes > LARGE_BYTES:
        yield warning(
            check,
            f"{_size(facts.bytes)}, {per_day:,.0f} events a day",
            "see what happens all the time: batuta events; old events go after 30 days",
        )
    elif facts.wal_bytes <= LARGE_WAL_BYTES:
        yield ok(check, f"{per_day:,.0f} events a day")


def _facts(connection: sqlite3.Connection, path: Path) -> JournalStats:
    low, high = connection.execute("SELECT min(seq), max(seq) FROM events").fetchone()
    (snapshot,) = connection.execute("SELECT max(seq) FROM snapshots").fetchone()
    times = connection.execute(
        "SELECT (SELECT time_s FROM events WHERE seq >= ? AND time_s > 0 ORDER BY seq LIMIT 1),"
        " (SELECT time_s FROM events WHERE seq <= ? AND time_s > 0 ORDER BY seq DESC LIMIT 1)",
        (low or 0, high or 0),
    ).fetchone()
    first_s, last_s = (float(one or 0.0) for one in times)
    return JournalStats(
        path.stat().st_size,
        _size_of(path.with_name(f"{path.name}-wal")),
        low or 0,
        high or snapshot or 0,
        snapshot or 0,
        max(0.0, last_s - first_s),
    )


def _size_of(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"


LITTLE_BYTES, TOO_LITTLE_BYTES = 1 << 30, 64 << 20
_LITTLE_FILES, _TOO_LITTLE_FILES = 10_000, 200


def check_disk_space(folder: Path, check: str = "disk") -> Finding:
    """Check how many bytes and files still fit on the file system of a directory."""
    try:
        room = os.statvfs(folder)
    except OSError as trouble:
        return error(check, f"cannot be checked: {trouble.strerror}", "see whether it is mounted")
    free = room.f_bavail * room.f_frsize
    found = f"{free / 2**30:.1f} GiB free"
    # A file system without a fixed number of files says 0 of 0.
    files = room.f_favail if room.f_files else _LITTLE_FILES
    if files < _LITTLE_FILES:
        found += f", and room for {files} more files"
    if free < TOO_LITTLE_BYTES or files < _TOO_LITTLE_FILES:
        return error(check, found, "make room: nothing can be stored, and a server does not start")
    if free < LITTLE_BYTES or files < _LITTLE_FILES:
        return warning(check, found, "make room: logs and checkpoints may fill it")
    return ok(check, found)
