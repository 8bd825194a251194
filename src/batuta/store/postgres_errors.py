"""What errors of PostgreSQL mean for the store, and what to do about them."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors as pg

from batuta.store.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

_LOST = ("08", "57P", "25P03", "25P04")
"""How codes begin when the line is broken, the server shuts down or starts up, or has ended the session."""

_BUSY = (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled)


def is_lost(connection: psycopg.Connection[Any], error: psycopg.Error) -> bool:
    """Whether the connection, and the lock that it held, are gone with this error."""
    return connection.closed or _is_about_the_line(error)


def _is_about_the_line(error: psycopg.Error) -> bool:
    if error.sqlstate is None:  # libpq's own errors have none
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_LOST)


def meaning_of(error: psycopg.Error, name: str) -> StoreError:
    """The error of the store that this one is."""
    text = sentence(error)
    if isinstance(error, pg.DiskFull):
        return StoreFullError(
            f"no room left for {name}: make room on the server's disk (nothing is lost meanwhile): {text}"
        )
    if isinstance(error, _BUSY):
        return StoreBusyError(f"{name} is kept busy by somebody else: {text}")
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return StoreUnavailableError(f"{name} takes no writes, it may be a standby: {text}")
    if isinstance(error, pg.InsufficientResources):
        return StoreUnavailableError(f"{name} has too little of something: {text}")
    if isinstance(error, pg.DataCorrupted | pg.IndexCorrupted):
        return StoreCorruptError(f"{name} is damaged: {text}. Restore it from a backup.")
    if _is_about_the_line(error):
        return StoreUnavailableError(f"{name} is away: {text}")
    return StoreError(f"{name}: {text}")


def sentence(error: psycopg.Error) -> str:
    """What the server or libpq says, on one line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
