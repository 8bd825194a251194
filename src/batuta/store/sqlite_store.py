"""All that is durable, from one file."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from batuta.core.world import World
from batuta.store.database import Database
from batuta.store.records import IdempotencyKeys, Results, Settings, Tasks, Tokens
from batuta.store.recovery import Recovered, recover
from batuta.store.sqlite_journal import SqliteJournal


class SqliteStore:
    """The journal, the snapshots and the tables beside them. The server has one; readers share it."""

    def __init__(self, path: Path | str, *, check: bool = True) -> None:
        self.database = Database(path, check=check)
        self.journal = SqliteJournal(self.database)
        self.snapshots = self.journal.snapshots
        self.tasks = Tasks(self.database)
        self.results = Results(self.database)
        self.settings = Settings(self.database)
        self.tokens = Tokens(self.database)
        self.idempotency = IdempotencyKeys(self.database)

    def recover(self) -> Recovered:
        """The World as the journal tells it."""
        return recover(self.journal, self.snapshots)

    def save_snapshot(self, world: World, seq: int) -> None:
        self.snapshots.save(world, seq)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
