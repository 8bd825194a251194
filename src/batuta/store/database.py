"""The contract of a database, and its schema: staged writes, numbered migrations, dialects."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias

from batuta.store.errors import SchemaError

Statement: TypeAlias = tuple[str, tuple[Any, ...]]
_WORDS = {
    "INTEGER": "BIGINT",  # SQLite's holds 64 bits, PostgreSQL's 32
    "REAL": "DOUBLE PRECISION",  # the same
    "BLOB": "BYTEA",
    "WITHOUT ROWID": "",  # how SQLite lays out a table
    "hex(randomblob(16))": "replace(gen_random_uuid()::text, '-', '')",  # 32 random digits
}
_WORD = re.compile(rf"--[^\n]*|'[^']*'|\b(?P<word>{'|'.join(map(re.escape, _WORDS))})(?!\w)")
_PLACE = re.compile(r"\?(\d*)")
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(slots=True, eq=False)
class Batch:
    """Statements of one transaction. After the first attempt none are added: it may have been written."""

    statements: list[Statement]
    is_written: bool = False
    changed: int | None = None  # rows that its last statement changed, if the database has reported it


class Database(ABC):
    """A database of Batuta's. Opening it checks it and migrates it to the newest schema.

    Durable: after `commit` has returned, neither kill -9 nor a power loss undoes what was staged.
    Atomic: everything that was staged between two commits is written, or nothing of it.
    Exactly once: the next commit writes what a failed one left behind, unless that was written; never twice.
    """

    name: str  # its name in messages, without secrets
    way_out: str  # what to do when something in it is damaged

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._staged: list[Statement] = []
        self._tried: list[Batch] = []  # batches whose commit has failed, oldest first
        self._staged_values: dict[Hashable, Any] = {}

    @abstractmethod
    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all committed rows at once; from any thread, without waiting for the writer."""

    def row(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        found = self.rows(sql, *values)
        return found[0] if found else None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads of this process from staging or committing meanwhile."""
        with self._lock:
            yield

    def stage(self, statements: Iterable[Statement], key: Hashable = None, value: Any = None) -> None:
        """Add statements to the next commit; until then `staged_value(key)` returns `value`."""
        with self._lock:
            self._staged.extend(statements)
            if key is not None:
                self._staged_values[key] = value

    def staged_value(self, key: Hashable) -> Any:
        """Return what was staged under a key and is not committed yet, else None."""
        with self._lock:
            return self._staged_values.get(key)

    def commit(self) -> None:
        """Make all that is staged durable, together. If it fails, all stays staged for the next attempt."""
        with self._lock:
            if self._staged:
                self._tried.append(Batch(self._staged))
                self._staged = []
            while self._tried:
                self._write(self._tried[0])
                del self._tried[0]
            self._staged_values = {}

    def write_now(self, statements: Iterable[Statement]) -> None:
        """Write in a transaction of its own, at once; what is staged waits for its commit."""
        with self._lock:
            self._write(Batch(list(statements)))

    @abstractmethod
    def count_now(self, sql: str, *values: Any) -> int:
        """Execute one statement at once; return the number of rows that it changed."""

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Write a batch that is not written yet: all of it, or nothing. The caller holds the lock."""

    @abstractmethod
    def reclaim_space(self) -> None:
        """Return some of the space of deleted rows to the disk."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections. What is staged and not committed is dropped."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a database differs from the SQL that the store writes once, for both.

    Queries are in the subset that both take, with `?` (or `?1`) for a value; migrations are in SQLite's SQL.
    Two traps: PostgreSQL has no `INSERT OR REPLACE` (use `ON CONFLICT … DO UPDATE`), and takes `user` for
    the name of the connected user (use `"user"`).
    """

    begin: str  # begins a transaction that excludes other writers
    find_table: str  # returns a row if the table exists whose name is its one value
    translate: Callable[[str], str]  # turns a statement of a migration into this database's SQL
    is_statement_error: Callable[[Exception], bool]  # whether the statement is wrong: a retry would fail too


def to_postgres_ddl(sql: str) -> str:
    """Return a statement of a migration with PostgreSQL's types."""
    return _WORD.sub(lambda found: _WORDS[found["word"]] if found["word"] else found[0], sql)


@lru_cache(maxsize=256)
def to_postgres_query(sql: str) -> bytes:
    """Return a query with PostgreSQL's placeholders: `?` becomes `$1`, `$2`, …, `?1` becomes `$1`."""
    numbers = count(1)
    return _PLACE.sub(lambda found: f"${found[1] or next(numbers)}", sql).encode()


class Migration(NamedTuple):
    """One step from a schema to the next."""

    version: int
    name: str
    sql: str


@lru_cache(maxsize=1)
def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this version of Batuta, in order, without a gap."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files("batuta.store").joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if not found or [m.version for m in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"migrations must be numbered from 1 on, found {[m.version for m in found]}")
    return tuple(found)


class Connection(Protocol):
    """What the connections of both databases have in common, in autocommit mode."""

    def execute(self, sql: str, values: tuple[Any, ...] = ..., /) -> Any: ...


def _is_statement_error(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_ERROR


SQLITE = Dialect(
    begin="BEGIN IMMEDIATE",
    find_table="SELECT 1 FROM sqlite_master WHERE name = ?",
    translate=str,
    is_statement_error=_is_statement_error,
)


def schema_version(connection: Connection, dialect: Dialect = SQLITE) -> int:
    """Return the schema version of a database; 0 when it has none yet."""
    if connection.execute(dialect.find_table, ("schema_version",)).fetchone() is None:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()
    return int(version)


def reject_newer_schema(connection: Connection, name: str, known: int, dialect: Dialect = SQLITE) -> int:
    """Return the schema version; SchemaError, before anything is changed, if a newer Batuta wrote it."""
    version = schema_version(connection, dialect)
    if version > known:
        raise SchemaError(
            f"{name} has schema {version}, this version of Batuta knows schemas up to {known}: "
            "it was used by a newer version. Start that one, or use another place for the journal."
        )
    return version


def require_newest_schema(connection: Connection, name: str, dialect: Dialect = SQLITE) -> None:
    """Raise SchemaError unless the schema is the newest: readers do not migrate."""
    newest = known_migrations()[-1].version
    version = reject_newer_schema(connection, name, newest, dialect)
    if version < newest:
        raise SchemaError(
            f"{name} has schema {version}, this version of Batuta reads {newest}: "
            "start the server once, which brings it up to date"
        )


def migrate(
    connection: Connection, name: str, migrations: Sequence[Migration] | None = None, dialect: Dialect = SQLITE
) -> list[int]:
    """Migrate a database to the newest schema; return the versions that were applied.

    The connection is in autocommit mode. A migration and its row in schema_version are one transaction.
    """
    migrations = known_migrations() if migrations is None else migrations
    newest = migrations[-1].version
    applied: list[int] = []
    if reject_newer_schema(connection, name, newest, dialect) == newest:
        return applied
    for migration in migrations:
        connection.execute(dialect.begin)
        try:
            # Checked again inside the transaction: another process may have been faster.
            if schema_version(connection, dialect) < migration.version:
                _apply(connection, migration, dialect)
                applied.append(migration.version)
            connection.execute("COMMIT")
        except BaseException:
            # The database may have rolled back already, or be unreachable.
            with suppress(Exception):
                connection.execute("ROLLBACK")
            raise
    return applied


def _apply(connection: Connection, migration: Migration, dialect: Dialect) -> None:
    version_table = (
        "CREATE TABLE IF NOT EXISTS schema_version ("
        "version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_s REAL NOT NULL);\n"
    )
    try:
        for statement in split_statements(version_table + migration.sql):
            connection.execute(dialect.translate(statement))
    except Exception as error:
        if dialect.is_statement_error(error):
            raise SchemaError(f"migration {migration.version} ({migration.name}): {error}") from error
        raise
    connection.execute("INSERT INTO schema_version VALUES (?, ?, ?)", (migration.version, migration.name, time.time()))


def split_statements(sql: str) -> Iterator[str]:
    """Yield the statements of a script; `executescript` would commit before the first of them."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if re.sub(r"--.*", "", statement).strip():
        raise SchemaError(f"a statement has no end: {statement.strip()!r}")


def storable_text(text: str) -> str:
    """Return the text, with what a database cannot hold escaped: lone surrogates, and for PostgreSQL NUL."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\x00", "\\x00")


def require_storable(text: str) -> str:
    """Return the text; ValueError if a database cannot hold it: staged, it would fail every commit."""
    text.encode()
    if "\x00" in text:
        raise ValueError("a text that contains the character 0 cannot be stored")
    return text
