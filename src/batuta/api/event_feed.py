"""New events for all streams: read from the journal once they are durable, the last ones kept in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import anyio.to_thread

from batuta.api.event_text import PublicEvent, public_event
from batuta.engine.fence import Fence
from batuta.store.journal import JournalWriter

MAX_RECENT = 4_096
_PAGE = 500
_RETRY_S = 1.0
_PAUSE_S = 0.02  # commits within this time are read together


class EventFeed:
    """The last events, in order and without a gap. Used in the event loop; only `run` reads in a thread."""

    def __init__(
        self,
        journal: JournalWriter,
        prepare: Callable[[], None] | None = None,
        on_event: Callable[[PublicEvent], None] | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._journal = journal
        self._prepare = prepare
        """Called in another thread before events are published, so that snapshots show their effect."""
        self._on_event = on_event  # called with each event once, in the event loop
        self._fence = fence or Fence()
        self._recent: deque[PublicEvent] = deque(maxlen=MAX_RECENT)
        self.last_seq = journal.durable_seq
        self._news = asyncio.Event()  # replaced whenever it is set, so that every listener wakes once
        self.closed = asyncio.Event()

    async def run(self) -> None:
        loop, committed = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: int) -> None:
            # In the engine's thread, perhaps after the loop has ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(committed.set)

        stop = self._journal.on_commit(wake)
        try:
            while True:
                is_read = False
                with self._fence.around("event feed"):
                    await self._catch_up()
                    is_read = True
                if not is_read:
                    # The journal is busy, or no thread is free.
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
            for event in page:
                self._recent.append(event)
                if self._on_event is not None:
                    with self._fence.around("timeline"):
                        self._on_event(event)
            self.last_seq = page[-1].seq
            news, self._news = self._news, asyncio.Event()
            news.set()

    def _next_page(self) -> list[PublicEvent]:
        page = read_page(self._journal, self.last_seq, _PAGE)
        if self._prepare is not None:
            self._prepare()
        return page

    def close(self) -> None:
        self.closed.set()
        self._news.set()

    async def after(self, seq: int) -> list[PublicEvent]:
        """Return some events after a sequence number, in order; none when there are none yet."""
        if seq >= self.last_seq:
            return []
        if self._recent and seq >= self._recent[0].seq - 1:
            # Without a gap, so the place is known.
            start = seq - self._recent[0].seq + 1
            return [self._recent[k] for k in range(start, min(start + _PAGE, len(self._recent)))]
        page = await anyio.to_thread.run_sync(partial(read_page, self._journal, seq, _PAGE))
        return [event for event in page if event.seq <= self.last_seq]

    async def wait(self, within_s: float) -> bool:
        """Wait for more events; False when none came in time."""
        if self.closed.is_set():
            return True
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._news.wait(), within_s)
        return False


def read_page(journal: JournalWriter, after: int, limit: int) -> list[PublicEvent]:
    return [public_event(text) for text in journal.texts_after(after, limit)]
