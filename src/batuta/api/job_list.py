"""Lists of jobs: query parameters, filters, pages and cursors."""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from heapq import merge
from operator import itemgetter
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field

from batuta.api.responses import bad_input, to_json
from batuta.api.routes import MAX_LIMIT
from batuta.api.snapshot import Key, WorldSnapshot, key_of
from batuta.api.views import living_as_json, past_as_json
from batuta.core.job import Job, JobState
from batuta.core.world import PastJob

T = TypeVar("T")


class JobQuery(BaseModel):
    """Which jobs, how many, from where on. Empty or None: no restriction."""

    state: list[JobState] = []
    active: bool | None = None
    user: Annotated[str, Field(max_length=128)] = ""
    queue: Annotated[str, Field(max_length=256)] = ""
    name: Annotated[str, Field(max_length=256, description="`*` and `?` stand for anything")] = ""
    since_s: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None
    order: Literal["newest", "oldest"] = "oldest"
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 100
    cursor: Annotated[str, Field(max_length=512, description="`next` of the last answer")] = ""

    def living(self, snapshot: WorldSnapshot) -> Sequence[int]:
        if self.active is False:
            return ()
        jobs, states = snapshot.jobs, snapshot.states
        rows = self._matching(range(len(jobs)), jobs.__getitem__, states.__getitem__)
        since_s = self.since_s
        return rows if since_s is None else [row for row in rows if jobs[row].submit_s >= since_s]

    def over(self, snapshot: WorldSnapshot) -> Sequence[tuple[Key, PastJob]]:
        if self.active is True:
            return ()
        found = self._matching(snapshot.past, lambda one: one[1].job, lambda one: one[1].state)
        since_s = self.since_s
        return found if since_s is None else [one for one in found if max(one[1].end_s, one[0][0]) >= since_s]

    def _matching(
        self, found: Sequence[T], job_of: Callable[[T], Job], state_of: Callable[[T], JobState]
    ) -> Sequence[T]:
        # One filter after the other, each in its own loop: lists are long, and most have few filters.
        if len(self.state) == 1:
            # By identity: to compare members of an enum by value takes several times as long.
            found = [one for one in found if state_of(one) is self.state[0]]
        elif self.state:
            found = [one for one in found if state_of(one) in self.state]
        if self.user:
            found = [one for one in found if job_of(one).user == self.user]
        if self.queue:
            found = [one for one in found if job_of(one).queue == self.queue]
        if name := self.name:
            found = [one for one in found if job_of(one).name == name or fnmatchcase(job_of(one).name, name)]
        return found


def page_of_jobs(snapshot: WorldSnapshot, query: JobQuery, now_s: float) -> bytes:
    """Return one page as JSON, with the number of all jobs that match."""
    rows, over, newest = query.living(snapshot), query.over(snapshot), query.order == "newest"
    total = len(rows) + len(over)
    if query.cursor:
        after = read_cursor(query.cursor)
        rows = _beyond(rows, after, newest, lambda row: key_of(snapshot.jobs[row]))
        over = _beyond(over, after, newest, itemgetter(0))
    shown, last, following = list[bytes](), None, None
    finishes_s = snapshot.forecast_finishes()
    for key, row, past in _merged(snapshot, rows, over, newest):
        if len(shown) == query.limit:
            following = write_cursor(last)
            break
        shown.append(living_as_json(snapshot, row, now_s, finishes_s) if past is None else past_as_json(past))
        last = key
    return b'{"jobs":[%b],"next":%b,"total":%d}' % (b",".join(shown), to_json(following), total)


def _beyond(entries: Sequence[T], after: Key, newest: bool, key: Callable[[T], Key]) -> Sequence[T]:
    """Return the entries after a key, in the order of the list."""
    if newest:
        return entries[: bisect_left(entries, after, key=key)]
    return entries[bisect_right(entries, after, key=key) :]


def _merged(
    snapshot: WorldSnapshot, rows: Sequence[int], over: Sequence[tuple[Key, PastJob]], newest: bool
) -> Iterator[tuple[Key, int, PastJob | None]]:
    """Return living jobs (by row) and past ones in order, lazily."""
    living: Iterator[tuple[Key, int, PastJob | None]]
    living = ((key_of(snapshot.jobs[row]), row, None) for row in (reversed(rows) if newest else rows))
    ended = ((key, -1, past) for key, past in (reversed(over) if newest else over))
    if not rows or not over:  # as in most lists; to compare keys takes as long as all else
        return ended if not rows else living
    return merge(living, ended, key=itemgetter(0), reverse=newest)


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
