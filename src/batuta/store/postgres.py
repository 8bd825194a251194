"""A store in a PostgreSQL database: one fenced writer and a pool of readers. Needs the extra `postgres`.

Two mechanisms, both on the server, keep a second writer out and keep a transaction from being written twice.
An advisory lock, held by the writer's session, excludes a second server while the first is connected. The row
in the table `writer` covers a lost connection: each server that opens the journal begins a new *term*, and
each transaction increments `commits` if term and count are what its writer expects, and fails as a whole if
not. So a writer that reconnects knows whether
- another server has written since (another term): it must stop, because its World is stale;
- the transaction whose answer was lost was committed (the count says so): it is not sent again;
- the server has lost a transaction that it acknowledged (the count is too low, as after a failover to a
  standby that lagged): it must stop as well.
The lock of the lost session makes the count final: the server frees it only after it has ended that session.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from itertools import groupby
from typing import Any

import psycopg
from psycopg import errors as pg

from batuta.store.database import Batch, Database, Statement, to_postgres_query
from batuta.store.errors import JournalRewoundError, StoreError, StoreUnavailableError, WriterReplacedError
from batuta.store.postgres_connection import (
    Connection,
    Connector,
    acquire_writer_lock,
    already_running,
    check_schema,
    is_connection_lost,
    parse_url,
    prepare_schema,
    translate_error,
)
from batuta.store.store import Store

MAX_READERS = 8


class ReaderPool:
    """At most `limit` connections, opened on demand. A thread that finds none free waits for one."""

    def __init__(self, connector: Connector, limit: int = MAX_READERS) -> None:
        self._connector = connector
        self._slots = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._closed = False

    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return all rows. A connection that broke while it was idle is replaced silently."""
        query = to_postgres_query(sql)
        with self._slots:
            connection = self._take()
            if connection is not None:
                try:
                    return self._read(connection, query, values)
                except _ConnectionLost:
                    # The server may have restarted: the other idle connections are as old.
                    self._drop_free()
            try:
                return self._read(self._connector.reader(), query, values)
            except _ConnectionLost as lost:
                raise translate_error(lost.error, self._connector.address.name) from lost.error

    def close(self) -> None:
        """Close the idle connections now, the others when they are released."""
        with self._lock:
            self._closed = True
        self._drop_free()

    def _read(self, connection: Connection, query: bytes, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            found = connection.execute(query, values, binary=True).fetchall()
        except psycopg.Error as error:
            if is_connection_lost(connection, error):
                connection.close()
                raise _ConnectionLost(error) from error
            self._release(connection)
            raise translate_error(error, self._connector.address.name) from error
        except BaseException:
            connection.close()
            raise
        self._release(connection)
        return found

    def _take(self) -> Connection | None:
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._connector.address.name} is closed")
            return self._free.pop() if self._free else None

    def _release(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()

    def _drop_free(self) -> None:
        with self._lock:
            dropped, self._free = self._free, []
        for connection in dropped:
            connection.close()


class _ConnectionLost(Exception):
    """The connection broke during a read."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


_MAX_ROWS = 64
_PLAIN = re.compile(r"(INSERT INTO \w+ \([\w, ]+\) VALUES )(\((?:\?, )*\?\))")
"""An INSERT that replaces no row. Among these, order does not matter: there are no foreign keys."""


def batch_inserts(statements: Iterable[Statement]) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    """Yield the statements for PostgreSQL, with inserts into one table merged; the result is the same."""
    for is_plain, run in groupby(statements, lambda statement: _is_plain(statement[0])):
        if not is_plain:
            yield from ((to_postgres_query(sql), values) for sql, values in run)
            continue
        rows_of: dict[str, list[tuple[Any, ...]]] = {}
        for sql, values in run:
            rows_of.setdefault(sql, []).append(values)
        for sql, rows in rows_of.items():
            yield from _insert_many(sql, rows)


def _insert_many(sql: str, rows: list[tuple[Any, ...]]) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    start = 0
    while start < len(rows):
        # Powers of two: with arbitrary lengths, few statements would be found prepared.
        size = min(_MAX_ROWS, 1 << ((len(rows) - start).bit_length() - 1))
        part = rows[start : start + size]
        yield _with_rows(sql, size), tuple(value for values in part for value in values)
        start += size


@lru_cache(maxsize=256)
def _is_plain(sql: str) -> bool:
    return _PLAIN.fullmatch(sql) is not None


@lru_cache(maxsize=256)
def _with_rows(sql: str, size: int) -> bytes:
    found = _PLAIN.fullmatch(sql)
    assert found is not None
    return to_postgres_query(found[1] + ", ".join([found[2]] * size))


LOCK_WAIT_S = 5.0  # how long to wait for a lock whose holder may be exiting
_RECONNECT_WAIT_S = 1.0
_BEGIN_TERM = b"UPDATE writer SET term = term + 1 RETURNING term, commits"
_READ_TERM = b"SELECT term, commits FROM writer"
# NULL violates NOT NULL: a stale writer's transaction fails, in the same round trip as the rest of it.
_COUNT = b"UPDATE writer SET commits = CASE WHEN term = $1 AND commits = $2 THEN commits + 1 END"


class PostgresWriter:
    """Writes batches over one connection, and reconnects when it breaks. The caller serialises calls."""

    def __init__(self, connector: Connector, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self._connector, self._address, self._name = connector, connector.address, connector.address.name
        self._unconfirmed: Batch | None = None  # the batch that was sent and not answered
        self._fatal: StoreError | None = None  # the error after which this writer never writes again
        self._connection: Connection | None = connector.writer()
        try:
            self._term, self._commits = self._begin(self._connection, lock_wait_s)
        except BaseException:
            self.close()
            raise

    def _begin(self, connection: Connection, lock_wait_s: float) -> tuple[int, int]:
        try:
            acquire_writer_lock(connection, self._address.schema, lock_wait_s)
            prepare_schema(connection, self._address)
            return _only_row(connection.execute(_BEGIN_TERM))
        except pg.LockNotAvailable as error:
            raise already_running(connection, self._address) from error
        except psycopg.Error as error:
            raise translate_error(error, self._name) from error

    def write(self, batch: Batch) -> None:
        """Write a batch in one transaction and one round trip, unless it turns out to be written already.

        StoreUnavailableError when the server does not answer. The batch may have been written: pass it again.
        """
        for is_last in (False, True):
            connection = self._connected()
            if batch.is_written:
                return
            try:
                self._send(connection, batch)
            except psycopg.Error as error:
                if not is_connection_lost(connection, error):
                    with suppress(psycopg.Error):
                        connection.execute(b"ROLLBACK")
                    if connection.closed:
                        self.close()
                    raise self._failure(connection, error) from error
                self._disconnect(batch)
                if is_last:
                    raise translate_error(error, self._name) from error
            except BaseException:
                self._disconnect(batch)
                raise
            else:
                self._commits += 1
                batch.is_written = True
                return

    def close(self) -> None:
        """End the session, and with it the lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, connection: Connection, batch: Batch) -> None:
        # The client waits only at the end of the pipeline. An error in it skips the COMMIT too.
        with connection.pipeline():
            connection.execute(b"BEGIN")
            last = connection.execute(_COUNT, (self._term, self._commits))
            for sql, values in batch_inserts(batch.statements):
                last = connection.execute(sql, values)
            connection.execute(b"COMMIT")
        batch.changed = last.rowcount

    def _failure(self, connection: Connection, error: psycopg.Error) -> StoreError:
        if isinstance(error, pg.NotNullViolation) and error.diag.table_name == "writer":
            try:
                self._resolve_unconfirmed(connection)
            except StoreError as found:
                return found
            except psycopg.Error as found:
                return translate_error(found, self._name)
        return translate_error(error, self._name)

    def _disconnect(self, batch: Batch) -> None:
        self._unconfirmed = batch
        self.close()

    def _connected(self) -> Connection:
        """Return the connection, with the lock; after a reconnect, resolve the unconfirmed batch."""
        if self._fatal is not None:
            raise self._fatal
        if self._connection is not None:
            return self._connection
        connection = self._connector.writer()
        try:
            self._reacquire_lock(connection)
            self._resolve_unconfirmed(connection)
        except psycopg.Error as error:
            connection.close()
            raise translate_error(error, self._name) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _reacquire_lock(self, connection: Connection) -> None:
        try:
            acquire_writer_lock(connection, self._address.schema, _RECONNECT_WAIT_S)
        except pg.LockNotAvailable:
            term, _ = _only_row(connection.execute(_READ_TERM))
            if term == self._term:
                raise StoreUnavailableError(
                    f"{self._name}: the server has not ended this writer's last session yet"
                ) from None
            # Another server holds the lock: `_resolve_unconfirmed` raises.

    def _resolve_unconfirmed(self, connection: Connection) -> None:
        """Find out what happened while disconnected; raise when this writer must stop."""
        term, commits = _only_row(connection.execute(_READ_TERM))
        if term != self._term:
            raise self._stop(
                WriterReplacedError(
                    f"another server has taken over {self._name} (term {term} after {self._term}): "
                    "this one stops, so that the journal has one writer"
                )
            )
        missing = commits - self._commits
        if missing not in ((0, 1) if self._unconfirmed is not None else (0,)):
            raise self._stop(
                JournalRewoundError(
                    f"{self._name} has {commits} transactions, {self._commits} were acknowledged: it was "
                    "restored, or a standby that lagged took its place. Restart: it continues from there"
                )
            )
        if self._unconfirmed is not None:
            self._unconfirmed.is_written = missing == 1
            self._commits, self._unconfirmed = commits, None

    def _stop(self, why: StoreError) -> StoreError:
        """Stop this writer for good, and end its session, which frees the lock."""
        self._fatal = why
        self.close()
        return why


def _only_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[int, int]:
    row = cursor.fetchone()
    if row is None:
        raise JournalRewoundError("the table `writer` has no row: restore the database from a backup")
    return int(row[0]), int(row[1])


class PostgresDatabase(Database):
    """A database on a PostgreSQL server. Reads and writes raise StoreUnavailableError while it does not answer."""

    def __init__(self, url: str, *, read_only: bool = False, lock_wait_s: float = LOCK_WAIT_S) -> None:
        super().__init__()
        address = parse_url(url)
        self.name = address.name
        self.way_out = "Restore the database from a backup, or name another schema with ?schema=."
        self.schema = address.schema
        connector = Connector(address)
        self._writer: PostgresWriter | None = None
        self._closed = False
        if read_only:
            with closing(connector.reader()) as connection:
                try:
                    check_schema(connection, address)
                except psycopg.Error as error:
                    raise translate_error(error, self.name) from error
        else:
            self._writer = PostgresWriter(connector, lock_wait_s)
        self._readers = ReaderPool(connector)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._readers.rows(sql, values)

    def count_now(self, sql: str, *values: Any) -> int:
        with self._lock:
            batch = Batch([(sql, values)])
            self._write(batch)
        if batch.changed is None:
            raise StoreUnavailableError(
                f"{self.name}: it was done, but the number of rows was lost with the connection"
            )
        return batch.changed

    def _write(self, batch: Batch) -> None:
        if self._writer is None:
            raise StoreError(f"{self.name} is {'closed' if self._closed else 'opened for reading only'}")
        self._writer.write(batch)

    def reclaim_space(self) -> None:
        """Do nothing: the server's autovacuum frees the space for new rows."""

    def close(self) -> None:
        """End the writer's session, which frees the lock. What is staged and not committed is dropped."""
        with self._lock:
            self._closed = True
            self._readers.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None


class PostgresStore(Store):
    """A store on a server. AlreadyRunningError when another server still writes to it after `lock_wait_s`."""

    database: PostgresDatabase

    def __init__(self, url: str, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        super().__init__(PostgresDatabase(url, lock_wait_s=lock_wait_s))
