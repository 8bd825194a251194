"""The state that all routes share, created once per application."""

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

from batuta.api.auth import Caller, RequestAuthenticator, Sessions, StoredTokenAuthenticator
from batuta.api.dependencies import ServerDependencies
from batuta.api.event_feed import EventFeed
from batuta.api.event_text import StoryCache
from batuta.api.forecast_cache import ForecastCache
from batuta.api.operations import Operations, caused_by
from batuta.api.snapshot import SnapshotCache, WorldSnapshot
from batuta.api.stream_limit import StreamLimit
from batuta.api.timeline import GpuTimeline
from batuta.api.views import TaskViewCache
from batuta.core import event as ev
from batuta.core.world import World
from batuta.engine.ports import JournalUnavailable
from batuta.engine.requests import RequestFn

ANSWER_WITHIN_S = 15.0
_CHECK_EVERY_S = 1.0
_SWITCH_S = 0.001
_COLLECT_AFTER = (20_000, 20, 50)
_HISTORY = 100_000  # past events that the timeline reads at a start
_PAGE = 1_000


class AppState:
    """What the routes work with: the dependencies, and the caches and records built over them."""

    def __init__(self, deps: ServerDependencies) -> None:
        self.deps = deps
        self.service, self.store, self.journal = deps.service, deps.store, deps.store.journal
        self.forecasts = (
            None
            if deps.foresight is None
            else ForecastCache(deps.foresight, self.fork, deps.store.settings, self.service.fence)
        )
        forecast_finishes = dict if self.forecasts is None else self.forecasts.finishes_s
        self.snapshots = SnapshotCache(deps.service, deps.cycles, forecast_finishes)
        self.sessions = Sessions(deps.store.settings, deps.clock, deps.store.journal.id)
        self.stored_tokens = StoredTokenAuthenticator(deps.store.tokens, deps.clock)
        self.authenticator = RequestAuthenticator(deps.bearers or self.stored_tokens, self.sessions, deps.peers)
        self.operations = Operations(deps.store, deps.clock, deps.experience, deps.user_priority, deps.take_number)
        self.stories = StoryCache(self.journal)
        self.tasks = TaskViewCache(deps.store.database)
        self.timeline = GpuTimeline()
        self.slow_questions = anyio.CapacityLimiter(1)
        """Questions that need scheduling cycles or whole files of their own are answered one at a time."""
        self.what_ifs = anyio.CapacityLimiter(1)  # they share one process, and leave the threads to other requests
        self.streams = StreamLimit(deps.max_streams)
        self.feed = EventFeed(
            self.journal, self.snapshots.refresh, lambda event: self.timeline.feed(event.data), self.service.fence
        )
        # A client that changed something finds it in the next snapshot, without waiting for the engine.
        self.service.before_answers(self.snapshots.refresh)

    def now_s(self) -> float:
        return self.deps.clock()

    def fork(self) -> World:
        """A copy of the World, for a thread that goes on with it by itself."""
        with self.service.reading() as (world, _):
            return world.fork()

    async def snapshot(self) -> WorldSnapshot:
        return await self.snapshots.newest()

    async def record_action(self, caller: Caller, action: str, target: str = "", *, is_setting: bool = False) -> None:
        """Write down what a user did that is not of the World: for the audit. Of a read-only server, settings alone."""
        if self.deps.read_only and not is_setting:
            return
        await self.request(lambda world: [ev.ActionTaken(max(self.now_s(), world.now_s), action, target)], caller)

    async def request(self, make: RequestFn, caller: Caller) -> None:
        """Have the engine carry out a request of a user; return when it is durable.

        Raises JournalUnavailable when nothing can be stored, TimeoutError when the engine does not answer.
        """
        waiting = asyncio.wrap_future(self.service.request(caused_by(caller.user, make)))
        begun_s = time.monotonic()
        try:
            while not (await asyncio.wait({waiting}, timeout=_CHECK_EVERY_S))[0]:
                if trouble := self.service.cannot_store:
                    raise JournalUnavailable(f"{trouble} (what was asked for may be done when it can)")
                if time.monotonic() > begun_s + ANSWER_WITHIN_S:
                    raise TimeoutError
            waiting.result()
        finally:
            waiting.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Follow the journal as long as the application runs."""
        # The engine computes for milliseconds at a time; a request should not wait 5 ms for its turn.
        sys.setswitchinterval(_SWITCH_S)
        # What a start has built stays: to collect it again and again would delay every request.
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
        with self.service.fence.around("timeline"):
            # The timeline can do without the past.
            await self._load_history()
        await self.feed.run()

    async def _load_history(self) -> None:
        """Read past events into the timeline, up to where the feed begins."""
        at, end = max(0, self.feed.last_seq - _HISTORY), self.feed.last_seq
        while at < end:
            page = await anyio.to_thread.run_sync(self.journal.texts_after, at, min(_PAGE, end - at))
            for text in page:
                self.timeline.feed(text.json)
            if not page:
                return
            at = page[-1].seq


async def _get_state(request: Request) -> AppState:
    state: AppState = request.app.state.batuta
    return state


StateDep = Annotated[AppState, Depends(_get_state)]


def end_streams(app: FastAPI) -> None:
    """End all streams of events and logs. To be called in the event loop when the server shuts down."""
    state: AppState = app.state.batuta
    state.feed.close()
