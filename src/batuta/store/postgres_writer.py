"""The one writer of a journal in PostgreSQL: nobody writes beside it, and nothing is written twice.

Two things see to that, both on the server. An advisory lock, held by the writer's session, keeps a second
server out for as long as the first is connected. The row in the table `writer` is for when it is not: each
server that opens the journal begins a new *term*, and each transaction counts `commits` up by one, if term
and count are what its writer thinks they are, and fails as a whole if not. So a writer whose connection was
cut knows, when it is back, whether
- somebody else has written since (another term): it must stop, for what it knows is old;
- the transaction whose answer got lost was done (the count says so): it is not sent again;
- the server has forgotten something that it had acknowledged (the count is too low, as after a switch to a
  copy that was behind): it must stop as well.
The lock of the cut session makes the count final: it is not to be had before the server has ended that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg

from batuta.store.database import Batch
from batuta.store.errors import (
    JournalRewoundError,
    StoreError,
    StoreUnavailableError,
    WriterReplacedError,
)
from batuta.store.postgres_batch import in_few
from batuta.store.postgres_connect import Connection, Connector
from batuta.store.postgres_errors import is_lost, meaning_of
from batuta.store.postgres_lock import already_running, take_lock
from batuta.store.postgres_schema import prepare

LOCK_WAIT_S = 5.0
"""How long to wait for a lock whose holder may just be ending."""
_BACK_WAIT_S = 1.0
_BEGIN_TERM = b"UPDATE writer SET term = term + 1 RETURNING term, commits"
_LOOK = b"SELECT term, commits FROM writer"
# No value where there has to be one: the transaction fails, in the same round trip as all the rest of it.
_COUNT = b"UPDATE writer SET commits = CASE WHEN term = $1 AND commits = $2 THEN commits + 1 END"


class PostgresWriter:
    """Writes batches over one connection, and makes a new one when it breaks. Its caller has a lock."""

    def __init__(self, connector: Connector, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self._connector = connector
        self._address = connector.address
        self._name = connector.address.name
        self._doubt: Batch | None = None
        """What was sent and not answered."""
        self._end: StoreError | None = None
        """Why this writer can never write again."""
        self._connection: Connection | None = connector.writer()
        try:
            self._term, self._commits = self._begin(self._connection, lock_wait_s)
        except BaseException:
            self.close()
            raise

    def _begin(self, connection: Connection, lock_wait_s: float) -> tuple[int, int]:
        try:
            take_lock(connection, self._address.schema, lock_wait_s)
            prepare(connection, self._address)
            return _only_row(connection.execute(_BEGIN_TERM))
        except pg.LockNotAvailable as error:
            raise already_running(connection, self._address) from error
        except psycopg.Error as error:
            raise meaning_of(error, self._name) from error

    def write(self, batch: Batch) -> None:
        """Writes a batch in one transaction and one round trip; not if it turns out to be written already.

        StoreUnavailableError when the server is away. Then the batch may have been written: give it again.
        """
        for is_last in (False, True):
            connection = self._connected()
            if batch.is_written:
                return
            try:
                self._send(connection, batch)
            except psycopg.Error as error:
                if not is_lost(connection, error):
                    self._undo(connection)
                    raise self._reason(connection, error) from error
                self._lose(batch)
                if is_last:
                    raise meaning_of(error, self._name) from error
            except BaseException:
                self._lose(batch)
                raise
            else:
                self._commits += 1
                batch.is_written = True
                return

    def close(self) -> None:
        """Ends the session, and with it the lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------------------------------------ sending

    def _send(self, connection: Connection, batch: Batch) -> None:
        # Nothing is waited for before the end of the pipeline. An error in it skips the COMMIT too.
        with connection.pipeline():
            connection.execute(b"BEGIN")
            last = connection.execute(_COUNT, (self._term, self._commits))
            for sql, values in in_few(batch.statements):
                last = connection.execute(sql, values)
            connection.execute(b"COMMIT")
        batch.changed = last.rowcount

    def _undo(self, connection: Connection) -> None:
        with suppress(psycopg.Error):
            connection.execute(b"ROLLBACK")
        if connection.closed:
            self.close()

    def _reason(self, connection: Connection, error: psycopg.Error) -> StoreError:
        if isinstance(error, pg.NotNullViolation) and error.diag.table_name == "writer":
            try:
                self._settle(connection)
            except StoreError as found:
                return found
            except psycopg.Error as found:
                return meaning_of(found, self._name)
        return meaning_of(error, self._name)

    # --------------------------------------------------------------------------------------------- connection

    def _lose(self, batch: Batch) -> None:
        self._doubt = batch
        self.close()

    def _connected(self) -> Connection:
        """The connection, with the lock, and after it broke with what was in doubt settled."""
        if self._end is not None:
            raise self._end
        if self._connection is not None:
            return self._connection
        connection = self._connector.writer()
        try:
            self._take_back(connection)
            self._settle(connection)
        except psycopg.Error as error:
            connection.close()
            raise meaning_of(error, self._name) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _take_back(self, connection: Connection) -> None:
        try:
            take_lock(connection, self._address.schema, _BACK_WAIT_S)
        except pg.LockNotAvailable:
            term, _ = _only_row(connection.execute(_LOOK))
            if term == self._term:
                raise StoreUnavailableError(
                    f"{self._name}: the server has not ended this writer's last session yet"
                ) from None
            # Somebody else's: what is wrong is the same for whoever has the lock.

    def _settle(self, connection: Connection) -> None:
        """Finds out what happened while nobody was looking; raises when this writer has to stop."""
        term, commits = _only_row(connection.execute(_LOOK))
        if term != self._term:
            raise self._stopped(
                WriterReplacedError(
                    f"another server has taken over {self._name} (term {term} after {self._term}): "
                    "this one stops, so that the journal has one writer"
                )
            )
        missing = commits - self._commits
        if missing not in ((0, 1) if self._doubt is not None else (0,)):
            raise self._stopped(
                JournalRewoundError(
                    f"{self._name} has {commits} transactions, {self._commits} were acknowledged: it was put "
                    "back, or a copy that was behind took its place. Start again: it goes on from there"
                )
            )
        if self._doubt is not None:
            self._doubt.is_written = missing == 1
            self._commits, self._doubt = commits, None

    def _stopped(self, why: StoreError) -> StoreError:
        """Ends this writer for good, and its session, so that nobody has to wait for the lock."""
        self._end = why
        self.close()
        return why


def _only_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[int, int]:
    row = cursor.fetchone()
    if row is None:
        raise JournalRewoundError("the table `writer` has lost its row: restore the database from a backup")
    return int(row[0]), int(row[1])
