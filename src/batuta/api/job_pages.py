"""Lists of jobs, filtered and in pages. A cursor is the place of the last job that was shown."""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import merge
from typing import Any, TypeVar

from batuta.api.picture import Key, Picture, key_of
from batuta.api.problems import bad_input
from batuta.api.views import view_living, view_past
from batuta.core.job import Job, JobState
from batuta.core.world import PastJob

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are wanted; empty or None: no matter."""

    states: tuple[JobState, ...] = ()
    active: bool | None = None
    user: str = ""
    queue: str = ""
    name: str = ""
    """`*` and `?` stand for anything."""
    since_s: float | None = None

    def living(self, picture: Picture) -> Sequence[int]:
        """The rows of the jobs that match, in their order."""
        rows: Sequence[int] = range(len(picture.jobs))
        jobs = picture.jobs
        if self.active is False:
            return ()
        # One thing after the other, each in its own loop: lists are long, and most are filtered by little.
        if self.states:
            states = picture.states
            rows = [row for row in rows if states[row] in self.states]
        if self.user:
            rows = [row for row in rows if jobs[row].user == self.user]
        if self.queue:
            rows = [row for row in rows if jobs[row].queue == self.queue]
        if self.name:
            rows = [row for row in rows if self._is_named(jobs[row])]
        if self.since_s is not None:
            rows = [row for row in rows if jobs[row].submit_s >= self.since_s]
        return rows

    def over(self, picture: Picture) -> Sequence[tuple[Key, PastJob]]:
        """The jobs that are over and match, in their order."""
        found: Sequence[tuple[Key, PastJob]] = picture.past
        if self.active is True:
            return ()
        if self.states:
            found = [one for one in found if one[1].state in self.states]
        if self.user:
            found = [one for one in found if one[1].job.user == self.user]
        if self.queue:
            found = [one for one in found if one[1].job.queue == self.queue]
        if self.name:
            found = [one for one in found if self._is_named(one[1].job)]
        if (since_s := self.since_s) is not None:
            found = [one for one in found if one[1].end_s >= since_s or one[0][0] >= since_s]
        return found

    def _is_named(self, job: Job) -> bool:
        return job.name == self.name or fnmatchcase(job.name, self.name)


def page_of_jobs(
    picture: Picture, wanted: JobFilter, cursor: str, limit: int, *, newest: bool, now_s: float
) -> dict[str, Any]:
    """One page, and how many there are in all."""
    rows, over = wanted.living(picture), wanted.over(picture)
    total = len(rows) + len(over)
    if cursor:
        after = read_cursor(cursor)
        rows = _beyond(rows, after, newest, lambda row: key_of(picture.jobs[row]))
        over = _beyond(over, after, newest, _first)
    shown: list[dict[str, Any]] = []
    last: Key | None = None
    for key, row, past in _merged(picture, rows, over, newest):
        if len(shown) == limit:
            return {"jobs": shown, "next": write_cursor(last), "total": total}
        shown.append(view_living(picture, row, now_s) if past is None else view_past(past))
        last = key
    return {"jobs": shown, "next": None, "total": total}


def _beyond(entries: Sequence[T], after: Key, newest: bool, key: Callable[[T], Key]) -> Sequence[T]:
    """What comes after a place, in the wanted order."""
    if newest:
        return entries[: bisect_left(entries, after, key=key)]
    return entries[bisect_right(entries, after, key=key) :]


def _merged(
    picture: Picture, rows: Sequence[int], over: Sequence[tuple[Key, PastJob]], newest: bool
) -> Iterator[tuple[Key, int, PastJob | None]]:
    """A living job by its row, or one that is over; only as far as somebody goes through them."""
    living = ((key_of(picture.jobs[row]), row, None) for row in (reversed(rows) if newest else rows))
    ended = ((key, -1, past) for key, past in (reversed(over) if newest else over))
    return merge(living, ended, key=_first, reverse=newest)


def _first(entry: tuple[Any, ...]) -> Key:
    key: Key = entry[0]
    return key


def write_cursor(key: Key | None) -> str | None:
    return None if key is None else base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Key:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        submit_s, sequence, job = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
        if isinstance(job, str) and isinstance(sequence, int):
            return float(submit_s), sequence, job
    except (ValueError, TypeError, RecursionError):
        pass
    raise bad_input("cursor is not one that this server has given", "the `next` of the last answer")
