"""What happens, as it becomes durable, for all who listen: read from the journal once, kept for a while."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import anyio.to_thread

from batuta.api.event_text import Told, tell
from batuta.store.errors import StoreError
from batuta.store.journal_writer import JournalWriter

_log = logging.getLogger(__name__)

KEPT = 4_096
_PAGE = 500
_RETRY_S = 1.0
_PAUSE_S = 0.02
"""Commits that follow each other sooner are read together."""


class Feed:
    """The last events, in order and without a gap. All but `run`'s reading happens in the event loop."""

    def __init__(
        self,
        journal: JournalWriter,
        prepare: Callable[[], None] | None = None,
        heard: Callable[[Told], None] | None = None,
    ) -> None:
        self._journal = journal
        self._prepare = prepare
        """Called in another thread before events are told, so that whoever asks then finds them done."""
        self._heard = heard
        """Told of each event once, in the event loop."""
        self._recent: deque[Told] = deque(maxlen=KEPT)
        self.last_seq = journal.durable_seq
        self._news = asyncio.Event()
        """Replaced at each news, so that every listener has its own moment to look."""
        self.closed = asyncio.Event()

    async def run(self) -> None:
        """Follows the journal until it is cancelled."""
        loop, committed = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: int) -> None:
            # In the engine's thread, perhaps after the loop has ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(committed.set)

        stop = self._journal.on_commit(wake)
        try:
            while True:
                try:
                    await self._catch_up()
                except StoreError as error:
                    # Busy, or just closed: a reader that gave up would never hear of anything again.
                    _log.warning("the journal cannot be read now: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                await committed.wait()
                committed.clear()
                await asyncio.sleep(_PAUSE_S)
        finally:
            stop()

    async def _catch_up(self) -> None:
        while self.last_seq < self._journal.durable_seq:
            page = await anyio.to_thread.run_sync(self._next_page)
            if not page:
                # All of it was pruned meanwhile.
                self.last_seq = self._journal.durable_seq
                return
            for told in page:
                self._recent.append(told)
                if self._heard is not None:
                    self._heard(told)
            self.last_seq = page[-1].seq
            news, self._news = self._news, asyncio.Event()
            news.set()

    def _next_page(self) -> list[Told]:
        page = read_page(self._journal, self.last_seq, _PAGE)
        if self._prepare is not None:
            self._prepare()
        return page

    def close(self) -> None:
        """Lets every listener end."""
        self.closed.set()
        self._news.set()

    async def after(self, seq: int) -> list[Told]:
        """Some of the events after a number, the next ones first; none when there are none yet."""
        if seq >= self.last_seq:
            return []
        if self._recent and seq >= self._recent[0].seq - 1:
            # Without a gap, so the place is known.
            start = seq - self._recent[0].seq + 1
            return [self._recent[k] for k in range(start, min(start + _PAGE, len(self._recent)))]
        page = await anyio.to_thread.run_sync(partial(read_page, self._journal, seq, _PAGE))
        return [told for told in page if told.seq <= self.last_seq]

    async def wait(self, within_s: float) -> bool:
        """Waits for more; False when there was none in time."""
        if self.closed.is_set():
            return True
        try:
            await asyncio.wait_for(self._news.wait(), within_s)
        except TimeoutError:
            return False
        return True


def read_page(journal: JournalWriter, after: int, limit: int) -> list[Told]:
    return [tell(text) for text in journal.texts_after(after, limit)]
