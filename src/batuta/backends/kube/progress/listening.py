"""Who is listened to: the engine's side names the logs, the event loop's side reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.progress.heard import Heard, LogOf
from batuta.backends.kube.progress.log_reader import LogReader, ReadingPace, Tell
from batuta.backends.kube.progress.room import Room
from batuta.core.job import JobId
from batuta.engine.stragglers.rank_watch import HeldUp, RankRules

MOST_LOGS: Final = 128
"""So many logs are followed at once; more take turns."""
MOST_ENDS: Final = 32
"""So many logs are read to their end at once, beside those."""
TURN_S: Final = 5.0
WRITES_PER_S: Final = 20.0
"""Of all jobs together, so many may have their progress written into their status."""
_log = logging.getLogger(__name__)

Changes: TypeAlias = Mapping[JobId, LogOf | None]
DEFAULT_PACE: Final = ReadingPace()


class Listening:
    """The engine's side. Each job says which log it wants to be heard; only what changed is passed on."""

    def __init__(self, post: Callable[[Changes], None] | None = None) -> None:
        """`post` takes changes over; without it nobody is listened to."""
        self._post = post
        self._wanted: dict[JobId, LogOf] = {}
        self._changed: dict[JobId, LogOf | None] = {}
        self.reports = self.refused = 0
        """How many were heard of all jobs, and how many lines were none that claimed to be."""
        self.ranks = RankRules()
        """When ranks hold a job up, where the job itself says nothing."""
        self.on_held_up: Callable[[HeldUp], None] = lambda found: None
        """Is told of jobs that are."""

    @property
    def logs(self) -> int:
        """How many logs are to be heard now."""
        return len(self._wanted)

    def count(self, heard: Heard) -> None:
        """Something was heard."""
        self.reports += len(heard.said)
        self.refused += heard.refused

    def to(self, job: JobId, log: LogOf | None) -> None:
        """From now on this log is the one of a job; None for none."""
        if self._post is None or self._wanted.get(job) == log:
            return
        if log is None:
            del self._wanted[job]
        else:
            self._wanted[job] = log
        self._changed[job] = log

    @property
    def is_on(self) -> bool:
        """Whether anybody listens."""
        return self._post is not None

    def send(self) -> None:
        """Hands over what has changed since the last time."""
        if self._changed and self._post is not None:
            changed, self._changed = self._changed, {}
            self._post(changed)

    def show_every_s(self, least_s: float) -> float:
        """How often one job may have its progress written: less often the more there are."""
        return max(least_s, len(self._wanted) / WRITES_PER_S)


class Listeners:
    """The event loop's side: one task for each log, of which so many read at a time."""

    def __init__(
        self,
        api: Api,
        tell: Tell,
        most: int = MOST_LOGS,
        turn_s: float = TURN_S,
        pace: ReadingPace = DEFAULT_PACE,
    ) -> None:
        """`tell` is given what was heard, on the event loop."""
        self._api = api
        self._tell = tell
        self._pace = pace
        self._room = Room(most, turn_s)
        self._ends = asyncio.Semaphore(MOST_ENDS)
        self._readers: dict[JobId, tuple[LogReader, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None

    def post(self, changes: Changes) -> None:
        """Takes changes over from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.take, changes)

    async def run(self) -> None:
        """Works until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._tasks:
            await self._loop.create_future()

    def take(self, changes: Changes) -> None:
        """The same for the event loop's own thread."""
        for job, log in changes.items():
            reader = self._leave(job)
            if log is None:
                continue
            if reader is None or reader.log.uid != log.uid:
                reader = LogReader(self._api, log, self._room, self._tell, self._pace)
            reader.log = log
            self._begin(job, reader)

    def _leave(self, job: JobId) -> LogReader | None:
        reader, task = self._readers.pop(job, (None, None))
        if task is not None:
            task.cancel()
        return reader

    def _begin(self, job: JobId, reader: LogReader) -> None:
        if self._tasks is not None:
            self._readers[job] = reader, self._tasks.create_task(self._guarded(reader))

    async def _guarded(self, reader: LogReader) -> None:
        """A fault in what is only good to know must not end the operator."""
        try:
            if reader.log.is_over:
                async with self._ends:
                    await reader.finish()
            else:
                await reader.follow()
        except Exception:
            log, ids = reader.log, {"job": reader.log.job}
            _log.exception("the log of pod %s/%s is not read any more", log.namespace, log.pod, extra=ids)
            self._tell(Heard(reader.log.job, reader.log.uid, is_all=True))
