"""Follows the log of one pod through everything that happens to a connection, and says what was reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, NotFound
from batuta.backends.kube.client.pace import BackOff, RateLimit
from batuta.backends.kube.progress.heard import Heard, LogOf
from batuta.backends.kube.progress.log_lines import LogLines, ReportLine
from batuta.backends.kube.progress.room import Room
from batuta.backends.kube.progress.said import said_in

FIRST_LINES: Final = 1000
"""So much is read of a log that has been written before anybody listened."""
MOST_REPORTS: Final = 64
"""Of more reports than this at a time, the last are heard."""
_log = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[Heard], None]


@dataclass(frozen=True, slots=True)
class ReadingPace:
    """How much may be read, how often, and how long things wait."""

    pause_s: float = 0.05
    """Between two pieces: a script that prints line by line is read many lines at a time."""
    bytes_per_s: float = 2**20
    """Of one log. One that is written faster is read from its end again."""
    burst_bytes: float = 2**23
    most_behind_s: float = 10.0
    """How long one may be held up for that before what is unread of it is skipped."""
    silence_s: float = 300.0
    """A connection without a byte for so long is made anew: its node may be gone."""
    again_s: float = 1.0
    """Before a log is read again that has ended, while its pod has not."""
    retry_s: float = 5.0
    """Before one is tried again that could not be read; it doubles."""
    rest_s: float = 5.0
    """Before one that had to leave the room asks for another turn; it doubles while nothing is reported."""
    longest_s: float = 300.0
    last_tries: int = 3
    last_pause_s: float = 0.3


class LogReader:
    """One log. `follow` while its pod lives, `finish` when that has ended; both until done or cancelled."""

    def __init__(self, api: Api, log: LogOf, room: Room, tell: Tell, pace: ReadingPace) -> None:
        self.log = log
        self._api = api
        self._room = room
        self._tell = tell
        self._pace = pace
        self._lines = LogLines()
        self._rate = RateLimit(pace.bytes_per_s, pace.burst_bytes)
        self._ends = BackOff(pace.again_s, pace.longest_s)
        self._failures = BackOff(pace.retry_s, pace.longest_s)
        self._rests = BackOff(pace.rest_s, pace.longest_s)
        self._tail = FIRST_LINES
        """How many lines are read that are there already; less than at first: what is unread is skipped."""

    async def follow(self) -> None:
        """Reads until there is no such pod any more."""
        while True:
            wait_s = self._rests.next_s  # somebody else wants to be heard
            try:
                async with self._room.turn():
                    await self._read(follow=True)
                    wait_s = self._ends.next_s
            except NotFound:
                self._tell(Heard(self.log.job, self.log.uid, is_all=True))
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
        self._tell(Heard(self.log.job, self.log.uid, is_all=True))

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
        found = [said_in(line) for line in lines[-MOST_REPORTS:]]
        said = tuple(one for one in found if one is not None)
        refused += len(found) - len(said)
        if said:
            self._ends.reset()
            self._rests.reset()
        if said or refused:
            self._tell(Heard(self.log.job, self.log.uid, said, refused))

    def _note(self, error: ApiError) -> None:
        level = logging.WARNING if isinstance(error, Forbidden) else logging.DEBUG
        log, ids = self.log, {"job": self.log.job}
        _log.log(level, "cannot read the log of pod %s/%s: %s", log.namespace, log.pod, error, extra=ids)
