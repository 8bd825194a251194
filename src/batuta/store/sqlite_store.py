"""All that is durable, in one file of SQLite's."""

from __future__ import annotations

from pathlib import Path

from batuta.store.sqlite_database import SqliteDatabase
from batuta.store.store import Store


class SqliteStore(Store):
    """A store in a file."""

    database: SqliteDatabase

    def __init__(self, path: Path | str, *, check: bool = True) -> None:
        super().__init__(SqliteDatabase(path, check=check))
