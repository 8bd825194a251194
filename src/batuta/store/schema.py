"""The schema, grown by numbered migrations: each is applied whole, in order and once, or not at all."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

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


def schema_version(connection: sqlite3.Connection) -> int:
    """The schema of a database; 0 when it has none yet."""
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone()
    if there is None:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()
    return int(version)


def refuse_newer(connection: sqlite3.Connection, path: str, known: int) -> int:
    """The schema of the database, if this version of Batuta knows it. Nothing is changed before that."""
    version = schema_version(connection)
    if version > known:
        raise SchemaError(
            f"{path} has schema {version}, this version of Batuta knows schemas up to {known}: "
            "it was used by a newer version. Start that one, or use another state directory."
        )
    return version


def migrate(
    connection: sqlite3.Connection, path: str, migrations: Sequence[Migration] | None = None
) -> list[int]:
    """Brings a database to the newest schema; returns the versions that were applied.

    The connection is in autocommit mode. A migration and the note that it was applied are one transaction.
    """
    migrations = known_migrations() if migrations is None else migrations
    newest = migrations[-1].version
    applied: list[int] = []
    if refuse_newer(connection, path, newest) == newest:
        return applied
    for migration in migrations:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Asked again inside: another process may have been faster.
            if schema_version(connection) < migration.version:
                _apply(connection, migration)
                applied.append(migration.version)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return applied


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_version ("
        "version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_s REAL NOT NULL)"
    )
    try:
        for statement in statements(migration.sql):
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
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
