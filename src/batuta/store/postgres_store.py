"""All that is durable, in a database of PostgreSQL's. Needs the extra `postgres`."""

from __future__ import annotations

from batuta.store.postgres_database import PostgresDatabase
from batuta.store.postgres_writer import LOCK_WAIT_S
from batuta.store.store import Store


class PostgresStore(Store):
    """A store on a server. AlreadyRunningError when another server writes to it for longer than a wait."""

    database: PostgresDatabase

    def __init__(self, url: str, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        super().__init__(PostgresDatabase(url, lock_wait_s=lock_wait_s))
