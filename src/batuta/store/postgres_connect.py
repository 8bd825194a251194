"""Connections to a PostgreSQL server: set up for a journal, and not asked for too often while it is away."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any, TypeAlias

import psycopg
from psycopg import RawCursor
from psycopg.types.numeric import Int8BinaryDumper

from batuta.store.errors import StoreError, StoreUnavailableError
from batuta.store.postgres_address import PostgresAddress
from batuta.store.postgres_errors import meaning_of, sentence

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# It says what it does about a broken line, on standard error when nobody listens: we say that by errors.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

LOCK_TIMEOUT = "10s"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    # A server or a network that is gone without a word is noticed within half a minute, by us …
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_WRITER_SETTINGS = {
    # … and we by the server, which then lets go of the lock for the next writer.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25000",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": LOCK_TIMEOUT,
}
_READER_SETTINGS = {"default_transaction_read_only": "on"}
_DURABLE = (
    b"SELECT set_config('synchronous_commit', 'on', false) "
    b"WHERE current_setting('synchronous_commit') = 'off'"
)


class Connector:
    """Makes connections for readers and the writer. May be used by any thread."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._trouble = ""

    def writer(self) -> Connection:
        return self._connect({"target_session_attrs": "read-write"}, _WRITER_SETTINGS, _DURABLE)

    def reader(self) -> Connection:
        return self._connect({}, _READER_SETTINGS)

    def _connect(self, options: dict[str, Any], settings: dict[str, str], *more: bytes) -> Connection:
        """StoreUnavailableError at once when it has just been tried in vain: who waits asks again."""
        with self._lock:
            if time.monotonic() < self._not_before_s:
                raise StoreUnavailableError(self._trouble)
        defaults = {
            key: value for key, value in (_DEFAULTS | options).items() if key not in self.address.options
        }
        try:
            connection: Connection = psycopg.connect(
                self.address.url,
                autocommit=True,
                cursor_factory=RawCursor,
                application_name=f"batuta {socket.gethostname()[:30]} pid {os.getpid()}",
                client_encoding="utf8",
                **defaults,
            )
        except psycopg.Error as error:
            raise self._failed(error) from error
        try:
            self._set_up(connection, settings)
            for statement in more:
                connection.execute(statement)
        except psycopg.Error as error:
            connection.close()
            raise meaning_of(error, self.address.name) from error
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._pause_s = self._not_before_s = 0.0
        return connection

    def _failed(self, error: psycopg.Error) -> StoreError:
        trouble = f"cannot connect to {self.address.name}: {sentence(error)}"
        with self._lock:
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._not_before_s = time.monotonic() + self._pause_s
            self._trouble = trouble
        return StoreUnavailableError(trouble)

    def _set_up(self, connection: Connection, settings: dict[str, str]) -> None:
        # One type for all whole numbers: a statement is prepared anew for each combination of types.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"{self.address.name} has the encoding {encoding}: make a database with "
                "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )
        own = {"search_path": f'"{self.address.schema}"'} | settings
        calls = ", ".join(f"set_config(${2 * k + 1}, ${2 * k + 2}, false)" for k in range(len(own)))
        connection.execute(f"SELECT {calls}".encode(), [word for pair in own.items() for word in pair])
