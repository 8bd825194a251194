"""Snapshots from time to time and the removal of old events, beside the engine's work and not in its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from batuta.core.world import World
from batuta.store.errors import StoreError
from batuta.store.store import Store

SNAPSHOT_EVERY = 20_000
"""Events that a start has to replay at most, give or take: about a second's worth."""
KEEP_S = 30 * 86_400.0
_PRUNE_EVERY_S = 3_600.0


class Upkeep:
    """Called after every step of the engine; what takes long is done by a thread of its own."""

    def __init__(
        self,
        store: Store,
        seq: int,
        *,
        every: int = SNAPSHOT_EVERY,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._saved_seq = seq
        self._every = every
        self._keep_s = keep_s
        self._clock = clock
        self._tell = tell
        """Is told what went wrong. The next try may go better."""
        self._next_prune_s = clock() + _PRUNE_EVERY_S
        self._worker: threading.Thread | None = None

    def after_step(self, world: World) -> None:
        """Called in the engine's thread, when all that it knows is committed."""
        if self._worker is not None and self._worker.is_alive():
            return
        seq = self._store.journal.durable_seq
        if seq - self._saved_seq >= self._every and seq == self._store.journal.last_seq:
            self._saved_seq = seq
            self._begin(self._save, world.fork(), seq)
        elif self._clock() >= self._next_prune_s:
            self._next_prune_s = self._clock() + _PRUNE_EVERY_S
            self._begin(self._prune)

    def finish(self, world: World) -> None:
        """At a clean end: waits for what is under way, and saves the World for a quick start next time.

        A World that is ahead of the journal, because that could not be written any more, is not saved.
        """
        if self._worker is not None:
            self._worker.join(30.0)
        seq = self._store.journal.durable_seq
        if seq > self._saved_seq and seq == self._store.journal.last_seq:
            self._save(world, seq)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._worker = threading.Thread(target=work, args=arguments, name="upkeep", daemon=True)
        self._worker.start()

    def _save(self, world: World, seq: int) -> None:
        try:
            self._store.save_snapshot(world, seq)
        except StoreError as error:
            self._complain(f"no snapshot after event {seq}: {error}")

    def _prune(self) -> None:
        try:
            self._store.journal.prune(before_s=self._clock() - self._keep_s)
            self._store.idempotency.forget(self._clock() - self._keep_s)
        except StoreError as error:
            self._complain(f"old events stay: {error}")

    def _complain(self, sentence: str) -> None:
        if self._tell is not None:
            self._tell(sentence)
