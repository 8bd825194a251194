"""A database in one SQLite file: a single writer that commits in groups, and one reader per thread.

Nothing but SQLite may open the file while it is in use: closing any other descriptor of it would drop the
locks of the whole process (POSIX).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from batuta.store.database import Batch, Database, known_migrations, migrate, reject_newer_schema, require_newest_schema
from batuta.store.errors import StoreBusyError, StoreCorruptError, StoreError, StoreFullError, StoreUnavailableError

APPLICATION_ID = 0x42415455  # in the file header: "BATU"
BUSY_TIMEOUT_S = 5.0
_WAL_LIMIT_BYTES = 64 << 20
_PRIMARY_CODE = 0xFF
_ENOUGH_BYTES = 1 << 20
_NO_TEXT = "Could not decode to UTF-8"  # how Python tells that bytes which are read as a text are none


class SqliteDatabase(Database):
    """A journal in a file of this machine."""

    def __init__(
        self, path: Path | str, *, read_only: bool = False, check: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        self.name = str(self.path)
        self.way_out = way_out(self.path)
        self._busy_timeout_s = busy_timeout_s
        self._local = threading.local()
        self._writer: sqlite3.Connection | None = None
        self._closed = False
        with translate_errors(self.path):
            if read_only:
                _reject_foreign(self.reader(), self.path)
                require_newest_schema(self.reader(), self.name)
            else:
                self._writer = self._open_writer(check)

    def _open_writer(self, check: bool) -> sqlite3.Connection:
        is_new = _create(self.path)
        connection = self._connect("rw")
        try:
            if is_new:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            else:
                _reject_foreign(connection, self.path)
                reject_newer_schema(connection, self.name, known_migrations()[-1].version)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreError(f"{self.path}: no write-ahead log on this file system (mode is {mode!r})")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
            if check and not is_new:
                found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
                if found != ["ok"]:
                    what = "; ".join(found).replace("*** in database main ***\n", "").replace("\n", "; ")
                    raise _damaged(self.path, what)
            if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(connection, self.name)
        except BaseException:
            connection.close()
            raise
        return connection

    def reader(self) -> sqlite3.Connection:
        """Return the read-only connection of this thread. It sees what is committed and never waits."""
        held: _ThreadConnection | None = getattr(self._local, "held", None)
        if held is None:
            if self._closed:
                raise StoreError(f"{self.path} is closed")
            with translate_errors(self.path):
                connection = self._connect("ro")
            connection.execute("PRAGMA query_only = ON")
            held = self._local.held = _ThreadConnection(connection)
        return held.connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows at once: an open cursor would block the checkpoint of the write-ahead log."""
        with translate_errors(self.path):
            return self.reader().execute(sql, values).fetchall()

    def count_now(self, sql: str, *values: Any) -> int:
        with self._lock, translate_errors(self.path):
            return self._connection().execute(sql, values).rowcount

    def _write(self, batch: Batch) -> None:
        connection = self._connection()
        with translate_errors(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                execute = connection.execute
                for sql, values in batch.statements:
                    execute(sql, values)
                execute("COMMIT")
            except BaseException:
                # SQLite itself has rolled back after some errors, a full disk among them.
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise

    def _connection(self) -> sqlite3.Connection:
        if self._writer is None:
            raise StoreError(f"{self.path} is {'closed' if self._closed else 'opened for reading only'}")
        return self._writer

    def reclaim_space(self, pages: int = 2_000) -> None:
        """Return the space of deleted rows to the disk, some pages at a time."""
        with self._lock, translate_errors(self.path):
            # Each step of this statement frees one page, and `execute` takes but one step.
            self._connection().executescript(f"PRAGMA incremental_vacuum({int(pages)})")

    def close(self) -> None:
        """Close this thread's reader and the writer. What is staged and not committed is dropped."""
        with self._lock:
            self._closed = True
            if getattr(self._local, "held", None) is not None:
                del self._local.held
            if self._writer is not None:
                writer, self._writer = self._writer, None
                # Gives the next start less to do, even if readers of other threads are still open.
                with suppress(sqlite3.Error):
                    writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                writer.close()


class _ThreadConnection:
    """Closes a thread's connection when the thread ends and its local values go."""

    __slots__ = ("connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def _create(path: Path) -> bool:
    """Create an empty file that only its owner may read; SQLite gives its other files the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return path.stat().st_size == 0
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}") from error
    return True


def _reject_foreign(connection: sqlite3.Connection, path: Path) -> None:
    (number,) = connection.execute("PRAGMA application_id").fetchone()
    # 0 with an empty schema: a first start that was killed early.
    if number != APPLICATION_ID and (number or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()):
        raise StoreCorruptError(f"{path} is a database, but none of Batuta's")


def way_out(path: Path) -> str:
    """Return what to do about a journal that is damaged."""
    return (
        "Stop the server and bring a backup back (batuta restore FILE --replace, which keeps the damaged one), or move "
        f"{path.name}, {path.name}-wal and {path.name}-shm away and start anew: batuta up --set-aside."
    )


def _damaged(path: Path, what: str) -> StoreCorruptError:
    return StoreCorruptError(f"{path} is damaged: {what}. {way_out(path)}")


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into errors of the store, which say what to do."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
        # A write-ahead log that cannot grow on a full disk may also fail as an I/O error.
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
            raise StoreFullError(
                f"no room left for {path}: make room on the disk (what was not written can be tried again)"
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusyError(f"{path} is locked by another process: {error}") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _NO_TEXT in str(error):
            raise _damaged(path, str(error)[:200]) from error
        if code == sqlite3.SQLITE_CANTOPEN and path.exists():
            # SQLite does not say why; mostly no descriptor is left, and that passes.
            raise StoreUnavailableError(f"{path} cannot be opened now: {error} (are descriptors left?)") from error
        raise StoreError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, f"a text in it is none: {error}") from error


def _is_full(path: Path) -> bool:
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _ENOUGH_BYTES
