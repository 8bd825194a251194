"""Open a store by its address, recover the World from it, and keep its journal short."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from batuta.core.apply import apply
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.observed_time import ObservedTime
from batuta.engine.ports import RecoveredWorld
from batuta.store.database import Database
from batuta.store.errors import RecoveryError, StoreError
from batuta.store.journal import JournalReader, JournalWriter
from batuta.store.records import IdempotencyKeys, Results, Settings, Tasks, Tokens
from batuta.store.snapshots import Snapshots
from batuta.store.sqlite import SqliteDatabase

SNAPSHOT_EVERY = 20_000  # events between snapshots: about what a start replays in a second
KEEP_S = 30 * 86_400.0
_PRUNE_EVERY_S = 3_600.0
_TELL_EVERY_S = 5.0  # how far what is told of durable events may lag behind
URL_SCHEMES = ("postgresql://", "postgres://")


def recover(journal: JournalReader, snapshots: Snapshots) -> RecoveredWorld:
    """Rebuild the World from the journal. The backend then reports as events what really runs."""
    was_on = gc.isenabled()
    # Nearly everything allocated here stays alive, and the collector would traverse it again and again.
    gc.disable()
    try:
        return _recover(journal, snapshots)
    finally:
        if was_on:
            gc.enable()


def _recover(journal: JournalReader, snapshots: Snapshots) -> RecoveredWorld:
    loaded = snapshots.load_latest()
    world, seq = loaded.world, loaded.seq
    for entry in journal.all_after(seq, decisions=False):
        if entry.seq != seq + 1:
            raise RecoveryError(f"the journal has no event {seq + 1}, the next is {entry.seq}")
        try:
            apply(world, entry.event)
        except Exception as error:
            raise RecoveryError(f"event {entry.seq} does not fit what came before it: {error!r}") from error
        seq = entry.seq
    return RecoveredWorld(world, seq, loaded.seq, loaded.unusable)


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
        self.on_durable: Callable[[int], None] | None = None  # told now and then which event is durable, by a thread

    def recover(self) -> RecoveredWorld:
        return recover(self.journal, self.snapshots)

    def save_snapshot(self, world: World, seq: int) -> None:
        self.snapshots.save(world, seq)

    def maintenance(self, recovered: RecoveredWorld, fence: Fence, time: ObservedTime) -> JournalMaintenance:
        """What takes snapshots and removes old events, beside an engine that goes on from what was found."""
        return JournalMaintenance(self, recovered.snapshot_seq, time, fence=fence)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(eq=False)
class JournalMaintenance:
    """Saves snapshots and prunes the journal. The engine calls it after each step; a thread does the work."""

    store: Store
    _saved_seq: int
    time: ObservedTime
    every: int = SNAPSHOT_EVERY
    keep_s: float = KEEP_S
    fence: Fence = field(default_factory=Fence)

    def __post_init__(self) -> None:
        self._next_prune_s = self.time.steady() + _PRUNE_EVERY_S
        self._worker = self.fence.background("snapshots of the journal")
        self._told_seq, self._next_tell_s = self._saved_seq, -math.inf

    def after_step(self, world: World) -> None:
        """Start what is due. For the engine's thread, when all events are committed."""
        if not self._worker.is_ready:
            return
        seq = self.store.journal.durable_seq
        if seq - self._saved_seq >= self.every and seq == self.store.journal.last_seq:
            self._worker.begin(self._save, world.fork(), seq)
        elif self.time.steady() >= self._next_prune_s or self.time.look():
            self._worker.begin(self._prune)
        elif self.store.on_durable is not None and seq > self._told_seq and self.time.steady() >= self._next_tell_s:
            self._next_tell_s = self.time.steady() + _TELL_EVERY_S
            self._worker.begin(self._tell, seq)

    def finish(self, world: World) -> None:
        """Wait for the thread, and save the World for a quick start, unless the journal could not follow it."""
        self._worker.join(30.0)
        seq = self.store.journal.durable_seq
        if seq > self._saved_seq and seq == self.store.journal.last_seq:
            self._worker.do(self._save, world, seq)
        self._worker.do(self._tell, seq)
        self._worker.do(self.time.save)

    def _save(self, world: World, seq: int) -> None:
        self.store.save_snapshot(world, seq)
        self._saved_seq = seq

    def _tell(self, seq: int) -> None:
        if self.store.on_durable is not None:
            self.store.on_durable(seq)
            self._told_seq = seq

    def _prune(self) -> None:
        self.time.save()
        before_s = self.time.before_s(self.keep_s)
        self.store.journal.prune(before_s=before_s)
        self.store.idempotency.forget(before_s)
        self._next_prune_s = self.time.steady() + _PRUNE_EVERY_S


class SqliteStore(Store):
    """A store in an SQLite file."""

    database: SqliteDatabase

    def __init__(self, path: Path | str, *, check: bool = True) -> None:
        super().__init__(SqliteDatabase(path, check=check))


def is_url(address: Path | str) -> bool:
    """Return whether an address names a PostgreSQL server, and not a file."""
    return isinstance(address, str) and address.startswith(URL_SCHEMES)


def open_reader(address: Path | str) -> Database:
    """Open the database at an address for reading only; its writer continues."""
    if not is_url(address):
        return SqliteDatabase(Path(address), read_only=True)
    with _postgres_driver():
        from batuta.store.postgres import PostgresDatabase  # noqa: PLC0415 (an optional dependency)
    return PostgresDatabase(str(address), read_only=True)


def open_store(address: Path | str, *, check: bool = True) -> Store:
    """Open the store at a path or at a URL of PostgreSQL. `check` reads a whole file for damage first."""
    if is_url(address):
        with _postgres_driver():
            from batuta.store.postgres import PostgresStore  # noqa: PLC0415 (an optional dependency)
        return PostgresStore(str(address))
    if isinstance(address, str) and "://" in address:
        raise StoreError(f"a journal is at a path or at postgresql://…, not at {address.partition('://')[0]}://")
    return SqliteStore(address, check=check)


@contextmanager
def _postgres_driver() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise StoreError(
            f"a journal in PostgreSQL needs the driver psycopg: pip install 'batuta[postgres]' ({error})"
        ) from error
