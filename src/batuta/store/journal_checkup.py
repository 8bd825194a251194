"""Is a journal sound, and does it grow faster than it should?"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from batuta.engine.finding import Finding, error, note, ok, warning
from batuta.store.sqlite_database import APPLICATION_ID

SLOW_BYTES = 512 << 20
"""Up to this size a journal is read in full to look for damage; that takes a few seconds."""
LARGE_WAL_BYTES = 256 << 20
"""The write-ahead log is taken over at 64 MiB, unless somebody reads for hours."""
LARGE_BYTES = 8 << 30
MUCH_PER_DAY = 5_000_000
"""Events; a cluster of ten thousand GPUs makes fewer."""
_STALE_EVENTS = 200_000
"""Snapshots are made every 20,000 events: at ten times that they fail."""
_MOVE_AWAY = "move it away with its -wal and -shm, and put back a copy or begin with an empty one"
_OPEN_S = 5.0


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """What a file tells of itself."""

    bytes: int
    wal_bytes: int
    first_seq: int
    last_seq: int
    snapshot_seq: int
    seconds: float
    """Between the first event that is kept and the last."""


def check_journal(path: Path, *, full: bool = False) -> Iterator[Finding]:
    """Damage and growth of a journal in a file, whether a server writes it or not.

    `full` looks through large ones, too.
    """
    if not path.exists():
        yield note("journal", "there is none yet", "batuta up makes it")
        return
    try:
        with _reading(path) as connection:
            yield from _look(connection, path, full)
    except sqlite3.DatabaseError as trouble:
        yield error("journal", f"cannot be read: {trouble}", _MOVE_AWAY)
    except OSError as trouble:
        yield error("journal", f"cannot be read: {trouble.strerror}", "see who may read it: ls -l")


def _look(connection: sqlite3.Connection, path: Path, full: bool) -> Iterator[Finding]:
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        yield error("journal", "the file is another program's, not a journal of Batuta's", _MOVE_AWAY)
        return
    facts = _facts(connection, path)
    if facts.bytes <= SLOW_BYTES or full:
        damage = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        if damage != ["ok"]:
            yield error("journal", f"is damaged: {'; '.join(damage)[:200]}", _MOVE_AWAY)
            return
        yield ok("journal", f"sound: events {facts.first_seq:,} to {facts.last_seq:,}, {_size(facts.bytes)}")
    else:
        yield note("journal", f"{_size(facts.bytes)}: not looked through for damage", "batuta doctor --full")
    yield from _growth(facts)


def _growth(facts: JournalFacts) -> Iterator[Finding]:
    check, count = "journal growth", max(0, facts.last_seq - facts.first_seq)
    per_day = count / max(facts.seconds / 86_400, 1 / 24)
    if facts.wal_bytes > LARGE_WAL_BYTES:
        yield warning(
            check,
            f"the write-ahead log has {_size(facts.wal_bytes)}: somebody reads it without an end",
            "end what reads journal.db for long (a backup, a query), or start the server anew",
        )
    if facts.last_seq - facts.snapshot_seq > _STALE_EVENTS:
        yield warning(
            check,
            f"no snapshot since event {facts.snapshot_seq:,}: a start takes long",
            "see why in server.log (upkeep)",
        )
    if per_day > MUCH_PER_DAY or facts.bytes > LARGE_BYTES:
        yield warning(
            check,
            f"{_size(facts.bytes)}, {per_day:,.0f} events a day",
            "see what happens all the time: batuta events; old events go after 30 days",
        )
    elif facts.wal_bytes <= LARGE_WAL_BYTES:
        yield ok(check, f"{per_day:,.0f} events a day")


def _facts(connection: sqlite3.Connection, path: Path) -> JournalFacts:
    low, high = connection.execute("SELECT min(seq), max(seq) FROM events").fetchone()
    (snapshot,) = connection.execute("SELECT max(seq) FROM snapshots").fetchone()
    times = connection.execute(
        "SELECT (SELECT time_s FROM events WHERE seq >= ? AND time_s > 0 ORDER BY seq LIMIT 1),"
        " (SELECT time_s FROM events WHERE seq <= ? AND time_s > 0 ORDER BY seq DESC LIMIT 1)",
        (low or 0, high or 0),
    ).fetchone()
    first_s, last_s = (float(one or 0.0) for one in times)
    return JournalFacts(
        path.stat().st_size,
        _size_of(path.with_name(f"{path.name}-wal")),
        low or 0,
        high or snapshot or 0,
        snapshot or 0,
        max(0.0, last_s - first_s),
    )


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=_OPEN_S, isolation_level=None)) as connection:
        connection.execute("PRAGMA query_only = ON")
        yield connection


def _size_of(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
