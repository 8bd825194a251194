"""New events for all streams: read from the journal once they are durable, the last ones kept in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import anyio.to_thread

from batuta.api.event_text import PublicEvent, public_event
from batuta.engine.fence import Fence
from batuta.store.journal import JournalWriter

MAX_RECENT = 4_096
MAX_CHUNK_BYTES = 64 << 10  # what one write to a client has at most, if it is not a single event
_PAGE = 500
_RETRY_S = 1.0
_PAUSE_S = 0.02  # commits within this time are read together …
_PAUSE_PER_LISTENER_S = 0.0006
"""… and for so much longer per listener. To write to one takes a tenth of that: the rest is left to requests."""
_WAKE = 25  # listeners that are woken at once; requests that came meanwhile go before the next ones
_MAX_SHARED = 64


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to stream; empty: all."""

    job: str = ""
    types: frozenset[str] = frozenset()

    def matches(self, event: PublicEvent) -> bool:
        return (not self.job or self.job in event.jobs) and (not self.types or event.type in self.types)


class Chunk(NamedTuple):
    """The events of a part of the journal that a client wants, as they are written to it."""

    first: int
    last: int  # it speaks for all events up to this one
    frames: bytes


class EventFeed:
    """The last events, in order and without a gap. Used in the event loop; only `run` reads in a thread.

    Nothing is queued for a listener: each asks for what comes after its place when it has written what it had,
    so one that reads slowly takes no memory, and reads older events from the journal.
    """

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
        self._waiting: dict[asyncio.Future[bool], None] = {}  # the listeners that have everything, in order
        self._shared: dict[tuple[int, EventFilter], Chunk] = {}  # what listeners at the same place are sent
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
                await asyncio.sleep(_PAUSE_S + _PAUSE_PER_LISTENER_S * len(self._waiting))
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
            self._shared.clear()
            await self._wake_listeners()

    def _next_page(self) -> list[PublicEvent]:
        page = read_page(self._journal, self.last_seq, _PAGE)
        if self._prepare is not None:
            self._prepare()
        return page

    async def _wake_listeners(self) -> None:
        for number, listener in enumerate(tuple(self._waiting), start=1):
            if not listener.done():
                listener.set_result(True)
            if number % _WAKE == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        self.closed.set()
        for listener in self._waiting:
            if not listener.done():
                listener.set_result(True)

    async def chunk(self, seq: int, wanted: EventFilter) -> Chunk | None:
        """Return what is to be written after a sequence number; None when there is nothing yet."""
        key = (seq, wanted)
        if (shared := self._shared.get(key)) is not None:
            return shared
        page = await self.after(seq)
        if not page:
            return None
        frames, size, last = list[bytes](), 0, page[-1].seq
        for before, event in zip((page[0], *page), page, strict=False):
            if wanted.matches(event):
                size += len(event.frame)
                if frames and size > MAX_CHUNK_BYTES:
                    last = before.seq
                    break
                frames.append(event.frame)
        found = Chunk(page[0].seq, last, b"".join(frames))
        if len(self._shared) < _MAX_SHARED and seq < self.last_seq:
            self._shared[key] = found
        return found

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
        loop = asyncio.get_running_loop()
        listener: asyncio.Future[bool] = loop.create_future()
        self._waiting[listener] = None
        timer = loop.call_later(within_s, _give_up, listener)
        try:
            return await listener
        finally:
            timer.cancel()
            del self._waiting[listener]


def _give_up(listener: asyncio.Future[bool]) -> None:
    if not listener.done():
        listener.set_result(False)


def read_page(journal: JournalWriter, after: int, limit: int) -> list[PublicEvent]:
    return [public_event(text) for text in journal.texts_after(after, limit)]
