"""Who reads a journal in PostgreSQL: a few connections, shared by all threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg

from batuta.store.dialect import postgres_query
from batuta.store.errors import StoreError
from batuta.store.postgres_connect import Connection, Connector
from batuta.store.postgres_errors import is_lost, meaning_of

MOST = 8


class PostgresReaders:
    """At most `most` connections, made when they are needed. Who finds none free waits for one."""

    def __init__(self, connector: Connector, most: int = MOST) -> None:
        self._connector = connector
        self._room = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._closed = False

    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows. A connection that broke while nobody used it is replaced without a word."""
        query = postgres_query(sql)
        with self._room:
            connection = self._take()
            if connection is not None:
                try:
                    return self._read(connection, query, values)
                except _Lost:
                    # The server was started anew, say: the others are as old.
                    self._drop_free()
            try:
                return self._read(self._connector.reader(), query, values)
            except _Lost as lost:
                raise meaning_of(lost.error, self._connector.address.name) from lost.error

    def close(self) -> None:
        """Closes those that are free now; the others when they are given back."""
        with self._lock:
            self._closed = True
        self._drop_free()

    def _read(self, connection: Connection, query: bytes, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            found = connection.execute(query, values, binary=True).fetchall()
        except psycopg.Error as error:
            if is_lost(connection, error):
                connection.close()
                raise _Lost(error) from error
            self._give_back(connection)
            raise meaning_of(error, self._connector.address.name) from error
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return found

    def _take(self) -> Connection | None:
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._connector.address.name} is closed")
            return self._free.pop() if self._free else None

    def _give_back(self, connection: Connection) -> None:
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


class _Lost(Exception):
    """The connection broke while it was read from."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error
