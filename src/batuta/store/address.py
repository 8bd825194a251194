"""Which kind of store an address means: a path is a file of SQLite's, a URL is a server of PostgreSQL's."""

from __future__ import annotations

from pathlib import Path

from batuta.store.database import Database
from batuta.store.errors import StoreError
from batuta.store.sqlite_database import SqliteDatabase
from batuta.store.sqlite_store import SqliteStore
from batuta.store.store import Store

URL_SCHEMES = ("postgresql://", "postgres://")
_NO_DRIVER = "a journal in PostgreSQL needs the driver psycopg: pip install 'batuta[postgres]' ({})"


def is_url(address: Path | str) -> bool:
    """Whether an address is a server's, and not a file's."""
    return isinstance(address, str) and address.startswith(URL_SCHEMES)


def open_reader(address: Path | str) -> Database:
    """What a store at this address has, for reading only: whoever writes there goes on."""
    if not is_url(address):
        return SqliteDatabase(Path(address), read_only=True)
    try:
        from batuta.store.postgres_database import PostgresDatabase  # noqa: PLC0415 (an optional dependency)
    except ImportError as error:
        raise StoreError(_NO_DRIVER.format(error)) from error
    return PostgresDatabase(str(address), read_only=True)


def open_store(address: Path | str, *, check: bool = True) -> Store:
    """The store at a path, or at a URL of PostgreSQL's. `check` looks at a whole file for damage first."""
    if is_url(address):
        try:
            from batuta.store.postgres_store import PostgresStore  # noqa: PLC0415 (an optional dependency)
        except ImportError as error:
            raise StoreError(_NO_DRIVER.format(error)) from error
        return PostgresStore(str(address))
    if isinstance(address, str) and "://" in address:
        raise StoreError(
            f"a journal is at a path or at postgresql://…, not at {address.partition('://')[0]}://"
        )
    return SqliteStore(address, check=check)
