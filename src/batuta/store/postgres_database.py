"""One schema of a PostgreSQL database: a single writer with a lock on it, and readers for every thread."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg

from batuta.store.database import Batch, Database
from batuta.store.errors import StoreError, StoreUnavailableError
from batuta.store.postgres_address import read_url
from batuta.store.postgres_connect import Connector
from batuta.store.postgres_errors import meaning_of
from batuta.store.postgres_readers import PostgresReaders
from batuta.store.postgres_schema import check
from batuta.store.postgres_writer import LOCK_WAIT_S, PostgresWriter


class PostgresDatabase(Database):
    """A journal on a server.

    While the server is away, reading and writing raise StoreUnavailableError; when it is back both go on.
    """

    def __init__(self, url: str, *, read_only: bool = False, lock_wait_s: float = LOCK_WAIT_S) -> None:
        super().__init__()
        address = read_url(url)
        self.name = address.name
        self.schema = address.schema
        self.read_only = read_only
        connector = Connector(address)
        self._writer: PostgresWriter | None = None
        self._closed = False
        if read_only:
            with closing(connector.reader()) as connection:
                try:
                    check(connection, address)
                except psycopg.Error as error:
                    raise meaning_of(error, self.name) from error
        else:
            self._writer = PostgresWriter(connector, lock_wait_s)
        self._readers = PostgresReaders(connector)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._readers.rows(sql, values)

    def count_now(self, sql: str, *values: Any) -> int:
        with self._lock:
            batch = Batch([(sql, values)])
            self._write(batch)
        if batch.changed is None:
            raise StoreUnavailableError(f"{self.name}: it was done, but how much it was got lost on the way")
        return batch.changed

    def _write(self, batch: Batch) -> None:
        if self._writer is None:
            raise StoreError(f"{self.name} is {'closed' if self._closed else 'opened for reading only'}")
        self._writer.write(batch)

    def size_bytes(self) -> int:
        """What the tables and their indexes take on the server's disk."""
        (size,) = self.rows(
            "SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint "
            "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE nspname = ? AND relkind = 'r'",
            self.schema,
        )[0]
        return int(size)

    def give_back(self) -> None:
        """Nothing to do: the server's autovacuum makes the room free for new rows."""

    def close(self) -> None:
        """Ends the writer's session, which frees the lock. What is staged and not committed is forgotten."""
        with self._lock:
            self._closed = True
            self._readers.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None
