"""Follow the logs of running pods over reconnects, a bounded number at a time, and deliver their reports.

The engine's thread names the logs (`LogSubscriptions`), the event loop reads them (`LogReaders`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, NotFound
from batuta.backends.kube.client.transport import Backoff, RateLimit
from batuta.backends.kube.progress.log_lines import LogLines, LogReport, LogSource, ReportLine, parse_report
from batuta.core.job import JobId
from batuta.engine.stragglers.rank_watch import HeldUp, RankRules

FIRST_LINES: Final = 1000  # lines that are read of what a log had before it was followed
MOST_REPORTS: Final = 64  # of more reports than this at a time, the last are heard
_log = logging.getLogger(__name__)
Tell: TypeAlias = Callable[[LogReport], None]
MOST_LOGS: Final = 128  # so many logs are followed at once; more take turns
MOST_ENDS: Final = 32  # so many logs are read to their end at once, beside those
TURN_S: Final = 5.0
WRITES_PER_S: Final = 20.0  # of all jobs together, so many may have their progress written into their status
Changes: TypeAlias = Mapping[JobId, LogSource | None]


class LogSlots:
    """Turns of a bounded number of tasks, in the order in which they come. For one event loop."""

    def __init__(self, most: int, turn_s: float) -> None:
        """`turn_s`: a log keeps its slot for at least this long."""
        self._free = asyncio.Semaphore(most)
        self._turn_s = turn_s
        self._turns: dict[asyncio.Timeout, float] = {}  # who is in, since when; the first came first

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Runs its body while no other log waits; at the end of the turn the body is cancelled."""
        loop = asyncio.get_running_loop()
        if self._free.locked():
            self._ask_one_to_leave(loop.time())
        async with self._free:
            turn = asyncio.timeout(None)
            try:
                async with turn:
                    self._turns[turn] = loop.time()
                    try:
                        yield
                    finally:
                        del self._turns[turn]
            except TimeoutError:
                if not turn.expired():
                    raise

    def _ask_one_to_leave(self, now_s: float) -> None:
        """For each that waits one leaves: the first that was not asked yet."""
        for turn, since_s in self._turns.items():
            if turn.when() is None:
                turn.reschedule(max(now_s, since_s + self._turn_s))
                return


@dataclass(frozen=True, slots=True)
class ReadingPace:
    """How much may be read, how often, and how long things wait."""

    pause_s: float = 0.05  # between two pieces: a script that prints line by line is read many lines at a time
    bytes_per_s: float = 2**20  # of one log. One that is written faster is read from its end again.
    burst_bytes: float = 2**23
    most_behind_s: float = 10.0  # how long one may be held up for that before what is unread of it is skipped
    silence_s: float = 300.0  # a connection without a byte for so long is made anew: its node may be gone
    again_s: float = 1.0  # before a log is read again that has ended, while its pod has not
    retry_s: float = 5.0  # before one is tried again that could not be read; it doubles
    rest_s: float = 5.0
    """Before one that had to leave the room asks for another turn; it doubles while nothing is reported."""
    longest_s: float = 300.0
    last_tries: int = 3
    last_pause_s: float = 0.3


DEFAULT_PACE: Final = ReadingPace()


class LogReader:
    """One log. `follow` while its pod lives, `finish` when that has ended; both until done or cancelled."""

    def __init__(self, api: Api, log: LogSource, room: LogSlots, tell: Tell, pace: ReadingPace) -> None:
        self.log = log
        self._api = api
        self._room = room
        self._tell = tell
        self._pace = pace
        self._lines = LogLines()
        self._rate = RateLimit(pace.bytes_per_s, pace.burst_bytes)
        self._ends = Backoff(pace.again_s, pace.longest_s)
        self._failures = Backoff(pace.retry_s, pace.longest_s)
        self._rests = Backoff(pace.rest_s, pace.longest_s)
        self._tail = FIRST_LINES
        """How many lines are read that are there already; less than at first: what is unread is skipped."""

    async def follow(self) -> None:
        while True:
            wait_s = self._rests.next_s  # another log waits for the slot
            try:
                async with self._room.turn():
                    await self._read(follow=True)
                    wait_s = self._ends.next_s
            except NotFound:
                self._tell(LogReport(self.log.job, self.log.uid, is_all=True))
                return
            except ApiError as error:
                self._note(error)
                wait_s = self._failures.next_s
            await asyncio.sleep(wait_s())

    async def finish(self) -> None:
        """Reads what is left of a log to which nothing is added any more."""
        for attempt in range(1, self._pace.last_tries + 1):
            try:
                await self._read(follow=False)
                break
            except ApiError as error:
                self._note(error)
                if error.status or attempt == self._pace.last_tries:
                    break  # the node has said no, or does not answer
                await asyncio.sleep(self._pace.last_pause_s)
        self._tell(LogReport(self.log.job, self.log.uid, is_all=True))

    async def _read(self, *, follow: bool) -> None:
        """One connection, from where the last one ended."""
        log, waited_s = self.log, self._rate.waited_s
        self._lines.reconnect()
        tail, self._tail = self._tail, FIRST_LINES
        since = self._lines.since if tail == FIRST_LINES else ""
        pieces = self._api.logs(
            log.namespace,
            log.pod,
            container=log.container,
            follow=follow,
            since=since,
            tail=None if since else tail,
            timestamps=True,
            silence_s=self._pace.silence_s,
        )
        async with aclosing(pieces):
            async for piece in pieces:
                self._failures.reset()
                self._hear(self._lines.take(piece))
                await self._rate.take(len(piece))
                if self._rate.waited_s - waited_s > self._pace.most_behind_s:
                    self._tail = max(1, tail // 10)
                    return
                await asyncio.sleep(self._pace.pause_s)

    def _hear(self, lines: list[ReportLine]) -> None:
        refused, self._lines.refused = self._lines.refused + max(0, len(lines) - MOST_REPORTS), 0
        found = [parse_report(line) for line in lines[-MOST_REPORTS:]]
        said = tuple(one for one in found if one is not None)
        refused += len(found) - len(said)
        if said:
            self._ends.reset()
            self._rests.reset()
        if said or refused:
            self._tell(LogReport(self.log.job, self.log.uid, said, refused))

    def _note(self, error: ApiError) -> None:
        level = logging.WARNING if isinstance(error, Forbidden) else logging.DEBUG
        log, ids = self.log, {"job": self.log.job}
        _log.log(level, "cannot read the log of pod %s/%s: %s", log.namespace, log.pod, error, extra=ids)


class LogSubscriptions:
    """The engine's side. Each job says which log it wants to be heard; only what changed is passed on."""

    def __init__(self, post: Callable[[Changes], None] | None = None) -> None:
        """`post` takes the changes; without it no log is read."""
        self._post = post
        self._wanted: dict[JobId, LogSource] = {}
        self._changed: dict[JobId, LogSource | None] = {}
        self.reports = self.refused = 0
        """How many were heard of all jobs, and how many lines were none that claimed to be."""
        self.ranks = RankRules()  # when ranks hold a job up, where the job itself says nothing
        self.on_held_up: Callable[[HeldUp], None] = lambda found: None  # is told of jobs that are

    @property
    def logs(self) -> int:
        return len(self._wanted)

    def count(self, heard: LogReport) -> None:
        self.reports += len(heard.said)
        self.refused += heard.refused

    def to(self, job: JobId, log: LogSource | None) -> None:
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
        return self._post is not None

    def send(self) -> None:
        if self._changed and self._post is not None:
            changed, self._changed = self._changed, {}
            self._post(changed)

    def show_every_s(self, least_s: float) -> float:
        """How often one job may have its progress written: less often the more there are."""
        return max(least_s, len(self._wanted) / WRITES_PER_S)


class LogReaders:
    """The event loop's side: one task for each log, of which so many read at a time."""

    def __init__(
        self, api: Api, tell: Tell, most: int = MOST_LOGS, turn_s: float = TURN_S, pace: ReadingPace = DEFAULT_PACE
    ) -> None:
        """`tell` is given what was heard, on the event loop."""
        self._api = api
        self._tell = tell
        self._pace = pace
        self._room = LogSlots(most, turn_s)
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
            reader, task = self._readers.pop(job, (None, None))
            if task is not None:
                task.cancel()
            if log is None or self._tasks is None:
                continue
            if reader is None or reader.log.uid != log.uid:
                reader = LogReader(self._api, log, self._room, self._tell, self._pace)
            reader.log = log
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
            self._tell(LogReport(reader.log.job, reader.log.uid, is_all=True))
