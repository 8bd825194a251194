"""What the routes work with, made once for an app."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import Depends, FastAPI, Request

from batuta.api.auth import Guard, StoredBearers
from batuta.api.event_text import Told
from batuta.api.feed import Feed
from batuta.api.foreseen import Foreseen
from batuta.api.operations import Operations
from batuta.api.parts import PolicyInfo, ServerParts
from batuta.api.picture import Picture, Pictures
from batuta.api.sessions import Sessions
from batuta.api.story import Stories
from batuta.api.task_view import ShownTasks
from batuta.api.timeline import TimelineRecord
from batuta.core.world import World
from batuta.engine.ports import JournalUnavailable
from batuta.engine.requests import Make
from batuta.store.errors import StoreError

ANSWER_WITHIN_S = 15.0
_LOOK_EVERY_S = 1.0
_SWITCH_S = 0.001
_COLLECT_AFTER = (20_000, 20, 50)
_HISTORY = 100_000
"""Events of the past that the timeline goes through at a start."""
_PAGE = 1_000


class Desk:
    """The collaborators of the routes."""

    def __init__(self, parts: ServerParts) -> None:
        self.parts = parts
        self.service, self.store, self.journal = parts.service, parts.store, parts.store.journal
        self.foreseen = (
            None if parts.foresight is None else Foreseen(parts.foresight, self.fork, parts.store.settings)
        )
        foretold = dict if self.foreseen is None else self.foreseen.finishes_s
        self.pictures = Pictures(parts.service, parts.cycles, foretold)
        self.sessions = Sessions(parts.store.settings, parts.clock)
        self.bearers = StoredBearers(parts.store.tokens)
        self.guard = Guard(parts.bearers or self.bearers, self.sessions)
        self.operations = Operations(parts.store, parts.clock, parts.experience)
        self.stories = Stories(self.journal)
        self.tasks = ShownTasks(parts.store.database)
        self.timeline = TimelineRecord()
        self.policies = [one if isinstance(one, PolicyInfo) else PolicyInfo(*one) for one in parts.policies]
        self.questions = anyio.CapacityLimiter(1)
        """Answers that need decisions of their own are worked out one after the other."""
        self.feed = Feed(self.journal, self.pictures.refresh, self._heard)
        # Whoever has changed something finds it in the next picture, without waiting for the engine.
        self.service.before_answers(self.pictures.refresh)

    def now_s(self) -> float:
        return self.parts.clock()

    def fork(self) -> World:
        """The World of this moment, for a thread that goes on with it by itself."""
        with self.service.reading() as (world, _):
            return world.fork()

    async def look(self) -> Picture:
        return await self.pictures.newest()

    async def ask(self, make: Make) -> None:
        """Has something done; returns when it is durable. JournalUnavailable when that cannot be now."""
        waiting, begun_s = asyncio.wrap_future(self.service.request(make)), time.monotonic()
        try:
            while not (await asyncio.wait({waiting}, timeout=_LOOK_EVERY_S))[0]:
                if trouble := self.service.cannot_store:
                    raise JournalUnavailable(f"{trouble} (what was asked for may be done when it can)")
                if time.monotonic() > begun_s + ANSWER_WITHIN_S:
                    raise TimeoutError
            waiting.result()
        finally:
            waiting.cancel()

    def _heard(self, told: Told) -> None:
        self.timeline.feed(told.data)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Follows the journal as long as the app runs."""
        # The engine computes for milliseconds at a time; requests shall not wait five of them for their turn.
        sys.setswitchinterval(_SWITCH_S)
        # What a start has built stays. To go through it again and again would hold every request up.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT_AFTER)
        follower = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self.feed.close()
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower

    async def _follow(self) -> None:
        with suppress(StoreError):
            # The timeline can do without the past.
            await self._remember()
        await self.feed.run()

    async def _remember(self) -> None:
        """Reads what the timeline needs of the past, up to where the feed begins."""
        at, end = max(0, self.feed.last_seq - _HISTORY), self.feed.last_seq
        while at < end:
            page = await anyio.to_thread.run_sync(self.journal.texts_after, at, min(_PAGE, end - at))
            for text in page:
                self.timeline.feed(text.json)
            if not page:
                return
            at = page[-1].seq


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


async def _desk(request: Request) -> Desk:
    return desk_of(request)


AtDesk = Annotated[Desk, Depends(_desk)]


def end_streams(app: FastAPI) -> None:
    """Lets all streams of events and logs end. To be called in the event loop when the server shuts down."""
    desk: Desk = app.state.desk
    desk.feed.close()
