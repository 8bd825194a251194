"""Save snapshots and remove old events in the background, without delaying the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from batuta.core.world import World
from batuta.engine.fence import Fence

if TYPE_CHECKING:
    from batuta.store.store import Store


SNAPSHOT_EVERY = 20_000
"""Events between snapshots: about what a start replays in a second."""
KEEP_S = 30 * 86_400.0
_PRUNE_EVERY_S = 3_600.0


class JournalMaintenance:
    """Saves snapshots and prunes the journal. The engine calls it after each step; a thread does the work."""

    def __init__(
        self,
        store: Store,
        seq: int,
        *,
        every: int = SNAPSHOT_EVERY,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.time,
        fence: Fence | None = None,
    ) -> None:
        self._store = store
        self._saved_seq = seq
        self._every = every
        self._keep_s = keep_s
        self._clock = clock
        self._next_prune_s = clock() + _PRUNE_EVERY_S
        self._worker = (fence or Fence()).background("snapshots of the journal")

    def after_step(self, world: World) -> None:
        """Start what is due. For the engine's thread, when all events are committed."""
        if not self._worker.is_ready:
            return
        seq = self._store.journal.durable_seq
        if seq - self._saved_seq >= self._every and seq == self._store.journal.last_seq:
            self._worker.begin(self._save, world.fork(), seq)
        elif self._clock() >= self._next_prune_s:
            self._worker.begin(self._prune)

    def finish(self, world: World) -> None:
        """Wait for the thread, and save the World so that the next start is quick.

        A World that is ahead of the journal, because the journal could not be written, is not saved.
        """
        self._worker.join(30.0)
        seq = self._store.journal.durable_seq
        if seq > self._saved_seq and seq == self._store.journal.last_seq:
            self._worker.do(self._save, world, seq)

    def _save(self, world: World, seq: int) -> None:
        self._store.save_snapshot(world, seq)
        self._saved_seq = seq

    def _prune(self) -> None:
        self._store.journal.prune(before_s=self._clock() - self._keep_s)
        self._store.idempotency.forget(self._clock() - self._keep_s)
        self._next_prune_s = self._clock() + _PRUNE_EVERY_S
