"""Which kind of store an address means: a path is a file of SQLite's, a URL is a server of PostgreSQL's."""

from __future__ import annotations

from pathlib import Path

from batuta.store.errors import StoreError
from batuta.store.sqlite_store import SqliteStore
from batuta.store.store import Store

URL_SCHEMES = ("postgresql://", "postgres://")


def is_url(address: Path | str) -> bool:
    """Whether an address is a server's, and not a file's."""
    return isinstance(address, str) and address.startswith(URL_SCHEMES)


def open_store(address: Path | str, *, check: bool = True) -> Store:
    """The store at a path, or at a URL of PostgreSQL's. `check` looks at a whole file for damage first."""
    if is_url(address):
        try:
            from batuta.store.postgres_store import PostgresStore  # noqa: PLC0415 (an optional dependency)
        except ImportError as error:
            raise StoreError(
                f"a journal in PostgreSQL needs the driver psycopg: pip install 'batuta[postgres]' ({error})"
            ) from error
        return PostgresStore(str(address))
    if isinstance(address, str) and "://" in address:
        raise StoreError(
            f"a journal is at a path or at postgresql://…, not at {address.partition('://')[0]}://"
        )
    return SqliteStore(address, check=check)
