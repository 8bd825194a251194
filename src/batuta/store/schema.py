"""The schema, grown by numbered migrations: each is applied whole, in order and once, or not at all.

One list of them serves both databases; what they call things differently is in dialect.py.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Protocol

from batuta.store.dialect import Dialect
from batuta.store.errors import SchemaError

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a schema to the next."""

    version: int
    name: str
    sql: str


@lru_cache(maxsize=1)
def known_migrations() -> tuple[Migration, ...]:
    """The migrations that come with this version of Batuta, in order, without a gap."""
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


def _is_mistake(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_ERROR


SQLITE = Dialect(
    begin="BEGIN IMMEDIATE",
    find_table="SELECT 1 FROM sqlite_master WHERE name = ?",
    spell=str,
    is_mistake=_is_mistake,
)


def schema_version(connection: Connection, dialect: Dialect = SQLITE) -> int:
    """The schema of a database; 0 when it has none yet."""
    if connection.execute(dialect.find_table, ("schema_version",)).fetchone() is None:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()
    return int(version)


def refuse_newer(connection: Connection, name: str, known: int, dialect: Dialect = SQLITE) -> int:
    """The schema of the database, if this version of Batuta knows it. Nothing is changed before that."""
    version = schema_version(connection, dialect)
    if version > known:
        raise SchemaError(
            f"{name} has schema {version}, this version of Batuta knows schemas up to {known}: "
            "it was used by a newer version. Start that one, or use another place for the journal."
        )
    return version


def refuse_older(connection: Connection, name: str, dialect: Dialect = SQLITE) -> None:
    """For readers, who change nothing: the schema has to be the newest."""
    newest = known_migrations()[-1].version
    version = refuse_newer(connection, name, newest, dialect)
    if version < newest:
        raise SchemaError(
            f"{name} has schema {version}, this version of Batuta reads {newest}: "
            "start the server once, which brings it up to date"
        )


def migrate(
    connection: Connection,
    name: str,
    migrations: Sequence[Migration] | None = None,
    dialect: Dialect = SQLITE,
) -> list[int]:
    """Brings a database to the newest schema; returns the versions that were applied.

    The connection is in autocommit mode. A migration and the note that it was applied are one transaction.
    """
    migrations = known_migrations() if migrations is None else migrations
    newest = migrations[-1].version
    applied: list[int] = []
    if refuse_newer(connection, name, newest, dialect) == newest:
        return applied
    for migration in migrations:
        connection.execute(dialect.begin)
        try:
            # Asked again inside: another process may have been faster.
            if schema_version(connection, dialect) < migration.version:
                _apply(connection, migration, dialect)
                applied.append(migration.version)
            connection.execute("COMMIT")
        except BaseException:
            # The database may have rolled back itself, or be gone.
            with suppress(Exception):
                connection.execute("ROLLBACK")
            raise
    return applied


def _apply(connection: Connection, migration: Migration, dialect: Dialect) -> None:
    note_of_versions = (
        "CREATE TABLE IF NOT EXISTS schema_version ("
        "version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_s REAL NOT NULL);\n"
    )
    try:
        for statement in statements(note_of_versions + migration.sql):
            connection.execute(dialect.spell(statement))
    except Exception as error:
        if dialect.is_mistake(error):
            raise SchemaError(f"migration {migration.version} ({migration.name}): {error}") from error
        raise
    connection.execute(
        "INSERT INTO schema_version VALUES (?, ?, ?)", (migration.version, migration.name, time.time())
    )


def statements(sql: str) -> Iterator[str]:
    """The statements of a script. `executescript` would commit before the first of them."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if re.sub(r"--.*", "", statement).strip():
        raise SchemaError(f"a statement has no end: {statement.strip()!r}")
