"""The lock of a journal's writer: an advisory lock on the server, which ends with the session that has it."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import psycopg

from batuta.store.errors import AlreadyRunningError
from batuta.store.postgres_address import PostgresAddress
from batuta.store.postgres_connect import LOCK_TIMEOUT, Connection

_HOLDER = b"""
SELECT application_name, coalesce(host(client_addr), 'the same machine'), date_trunc('second', backend_start)
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND datname = current_database() AND objsubid = 1
AND (classid::bigint << 32) + objid::bigint = $1
"""


def lock_key(schema: str) -> int:
    """The number of the lock. Locks are apart by database already, but not by schema."""
    digest = hashlib.sha256(f"batuta journal {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def take_lock(connection: Connection, schema: str, wait_s: float) -> None:
    """Takes the lock; psycopg.errors.LockNotAvailable when another session keeps it for longer."""
    milliseconds = max(int(wait_s * 1000), 1)  # 0 would be for ever
    connection.execute(b"SELECT set_config('lock_timeout', $1, false)", (f"{milliseconds}ms",))
    connection.execute(b"SELECT pg_advisory_lock($1)", (lock_key(schema),))
    connection.execute(b"SELECT set_config('lock_timeout', $1, false)", (LOCK_TIMEOUT,))


def already_running(connection: Connection, address: PostgresAddress) -> AlreadyRunningError:
    """Says who has the lock."""
    holder = None
    with suppress(psycopg.Error):
        holder = connection.execute(_HOLDER, (lock_key(address.schema),)).fetchone()
    who = f"{holder[0]}, from {holder[1]}, since {holder[2]}" if holder else "it did not say which"
    return AlreadyRunningError(
        f"another server writes to {address.name} ({who}); stop it, or name another schema with ?schema=",
        None,
    )
