"""All that is durable, from one database."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from batuta.core.world import World
from batuta.store.database import Database
from batuta.store.journal_writer import JournalWriter
from batuta.store.records import IdempotencyKeys, Results, Settings, Tasks, Tokens
from batuta.store.recovery import Recovered, recover


class Store:
    """The journal, the snapshots and the tables beside them. The server has one; readers share it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.journal = JournalWriter(database)
        self.snapshots = self.journal.snapshots
        self.tasks = Tasks(database)
        self.results = Results(database)
        self.settings = Settings(database)
        self.tokens = Tokens(database)
        self.idempotency = IdempotencyKeys(database)

    def recover(self) -> Recovered:
        """The World as the journal tells it."""
        return recover(self.journal, self.snapshots)

    def save_snapshot(self, world: World, seq: int) -> None:
        self.snapshots.save(world, seq)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
