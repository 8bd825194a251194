"""Connections to PostgreSQL: address, settings, errors, the writer's lock and the schema."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from psycopg import RawCursor
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from batuta.store.database import Dialect, migrate, require_newest_schema, to_postgres_ddl, to_postgres_query
from batuta.store.errors import (
    AlreadyRunningError,
    SchemaError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

DEFAULT_SCHEMA = "batuta"
_SHOWN = ("host", "hostaddr", "port", "dbname")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """One journal on one server. Several may be in one database, each in a schema of its own."""

    url: str  # for libpq; it may have a password in it
    schema: str
    name: str  # for messages: without a password
    options: frozenset[str]  # the options that the URL sets, which override the defaults


def parse_url(url: str) -> PostgresAddress:
    """Parse `postgresql://user:password@host:port/database?schema=batuta`; StoreError names the fix."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        schema = dict(pairs).get("schema", DEFAULT_SCHEMA)
        # libpq rejects options that it does not know, such as `schema`.
        query = urlencode([pair for pair in pairs if pair[0] != "schema"])
        plain = f"{parts.scheme}://{parts.netloc}{parts.path}{'?' if query else ''}{query}"
        known = conninfo_to_dict(plain)
    except (ValueError, psycopg.ProgrammingError) as error:
        # Neither the URL nor all of the error: there may be a password in it.
        raise StoreError(
            "the journal's URL cannot be read; it looks like postgresql://user@host:5432/database "
            f"(special characters in a password as %XX): {_without_values(str(error))}"
        ) from None
    if not _SCHEMA.fullmatch(schema):
        raise StoreError(
            f"schema={schema} in the journal's URL: a schema has up to 63 lower-case letters, digits and _, "
            "and begins with no digit"
        )
    shown = [pair for pair in pairs if pair[0] in _SHOWN]
    where = parts.netloc.rpartition("@")[2] + parts.path
    name = f"postgresql://{where}?{urlencode([*shown, ('schema', schema)], safe='/')}"
    return PostgresAddress(plain, schema, name, frozenset(known))


def _without_values(message: str) -> str:
    """Return a message of libpq without the parts that it quotes."""
    return re.sub(r'"[^"]*"', "…", message).strip()


_LOST = ("08", "57P", "25P03", "25P04")  # SQLSTATEs of a broken connection or session, and of a stopping server

_BUSY = (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled)


def is_connection_lost(connection: psycopg.Connection[Any], error: psycopg.Error) -> bool:
    """Return whether the connection, and the lock that it held, are gone with this error."""
    return connection.closed or _is_connection_error(error)


def _is_connection_error(error: psycopg.Error) -> bool:
    if error.sqlstate is None:  # libpq's own errors have none
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_LOST)


def translate_error(error: psycopg.Error, name: str) -> StoreError:
    """Return the error of the store that an error of PostgreSQL stands for."""
    text = error_text(error)
    if isinstance(error, pg.DiskFull):
        return StoreFullError(
            f"no room left for {name}: make room on the server's disk (nothing is lost meanwhile): {text}"
        )
    if isinstance(error, _BUSY):
        return StoreBusyError(f"{name} is locked by another session: {text}")
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return StoreUnavailableError(f"{name} accepts no writes, it may be a standby: {text}")
    if isinstance(error, pg.InsufficientResources):
        return StoreUnavailableError(f"{name} is out of resources: {text}")
    if isinstance(error, pg.DataCorrupted | pg.IndexCorrupted):
        return StoreCorruptError(f"{name} is damaged: {text}. Restore it from a backup.")
    if _is_connection_error(error):
        return StoreUnavailableError(f"{name} does not answer: {text}")
    return StoreError(f"{name}: {text}")


def error_text(error: psycopg.Error) -> str:
    """Return the message of the server or of libpq on one line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# Without a handler psycopg prints connection errors to standard error; the store raises them.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

LOCK_TIMEOUT = "10s"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    # A server or a network that fails silently is noticed within half a minute, by the client …
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_WRITER_SETTINGS = {
    # … and a client by the server, which then frees the lock for the next writer.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25000",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": LOCK_TIMEOUT,
}
_READER_SETTINGS = {"default_transaction_read_only": "on"}
_DURABLE = b"SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"


class Connector:
    """Opens connections for readers and the writer, with backoff after a failure. Any thread may use it."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._failure = ""

    def writer(self) -> Connection:
        return self._connect({"target_session_attrs": "read-write"}, _WRITER_SETTINGS, _DURABLE)

    def reader(self) -> Connection:
        return self._connect({}, _READER_SETTINGS)

    def _connect(self, options: dict[str, Any], settings: dict[str, str], *more: bytes) -> Connection:
        """Open a connection; StoreUnavailableError at once during the backoff after a failure."""
        with self._lock:
            if time.monotonic() < self._not_before_s:
                raise StoreUnavailableError(self._failure)
        defaults = {key: value for key, value in (_DEFAULTS | options).items() if key not in self.address.options}
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
            raise translate_error(error, self.address.name) from error
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._pause_s = self._not_before_s = 0.0
        return connection

    def _failed(self, error: psycopg.Error) -> StoreError:
        failure = f"cannot connect to {self.address.name}: {error_text(error)}"
        with self._lock:
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._not_before_s = time.monotonic() + self._pause_s
            self._failure = failure
        return StoreUnavailableError(failure)

    def _set_up(self, connection: Connection, settings: dict[str, str]) -> None:
        # One type for all integers: a statement is prepared again for each combination of types.
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


_HOLDER = b"""
SELECT application_name, coalesce(host(client_addr), 'the same machine'), date_trunc('second', backend_start)
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND datname = current_database() AND objsubid = 1
AND (classid::bigint << 32) + objid::bigint = $1
"""


def lock_key(schema: str) -> int:
    """Return the number of the advisory lock of a schema; PostgreSQL separates them by database only."""
    digest = hashlib.sha256(f"batuta journal {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def acquire_writer_lock(connection: Connection, schema: str, wait_s: float) -> None:
    """Take the lock, which ends with the session; LockNotAvailable when another session keeps it."""
    milliseconds = max(int(wait_s * 1000), 1)  # 0 would be for ever
    connection.execute(b"SELECT set_config('lock_timeout', $1, false)", (f"{milliseconds}ms",))
    connection.execute(b"SELECT pg_advisory_lock($1)", (lock_key(schema),))
    connection.execute(b"SELECT set_config('lock_timeout', $1, false)", (LOCK_TIMEOUT,))


def already_running(connection: Connection, address: PostgresAddress) -> AlreadyRunningError:
    """Return an error that names the holder of the lock."""
    holder = None
    with suppress(psycopg.Error):
        holder = connection.execute(_HOLDER, (lock_key(address.schema),)).fetchone()
    who = f"{holder[0]}, from {holder[1]}, since {holder[2]}" if holder else "it did not say which"
    return AlreadyRunningError(
        f"another server writes to {address.name} ({who}); stop it, or name another schema with ?schema=", None
    )


def _is_statement_error(error: Exception) -> bool:
    return isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError | psycopg.DataError)


POSTGRES = Dialect(
    begin="BEGIN",
    find_table="SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?",
    translate=to_postgres_ddl,
    is_statement_error=_is_statement_error,
)


class TranslatingConnection:
    """A connection that translates the queries of the store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: tuple[Any, ...] = (), /) -> Any:
        return self._connection.execute(to_postgres_query(sql), values)


def prepare_schema(connection: Connection, address: PostgresAddress) -> None:
    """Create or migrate the schema. The caller holds the writer's lock."""
    _create_schema(connection, address)
    _reject_foreign(connection, address)
    migrate(TranslatingConnection(connection), address.name, dialect=POSTGRES)


def check_schema(connection: Connection, address: PostgresAddress) -> None:
    """Raise SchemaError unless the schema is Batuta's and the newest: readers do not migrate."""
    _reject_foreign(connection, address)
    require_newest_schema(TranslatingConnection(connection), address.name, POSTGRES)


def _create_schema(connection: Connection, address: PostgresAddress) -> None:
    # Checked first: a user without the right to create a schema may still use an existing one.
    if connection.execute(b"SELECT 1 FROM pg_namespace WHERE nspname = $1", (address.schema,)).fetchone():
        return
    try:
        connection.execute(f'CREATE SCHEMA "{address.schema}"'.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"{address.name}: this user may not create the schema; have an owner of the database run "
            f'CREATE SCHEMA "{address.schema}" AUTHORIZATION "{connection.info.user}"'
        ) from error


def _reject_foreign(connection: Connection, address: PostgresAddress) -> None:
    tables, ours = connection.execute(
        b"SELECT count(DISTINCT table_name), count(*) FILTER (WHERE table_name = 'schema_version' "
        b"AND column_name = 'applied_s') FROM information_schema.columns WHERE table_schema = $1",
        (address.schema,),
    ).fetchone() or (0, 0)
    if tables and not ours:
        raise StoreCorruptError(f"{address.name} has tables, but none of Batuta's: name another schema with ?schema=")
