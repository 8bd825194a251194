"""Ids of new jobs: decimal numbers, counted up, never given twice."""

from __future__ import annotations

from batuta.core.job import JobId
from batuta.core.world import World
from batuta.store.sqlite_store import SqliteStore

_MOST_DIGITS = 15


class JobNumbers:
    """Counts on from the largest number that was ever given. For the engine's thread only."""

    def __init__(self, store: SqliteStore) -> None:
        self._stored = _largest_stored(store)
        self._last: int | None = None

    def next(self, world: World) -> int:
        if self._last is None:
            self._last = max((*map(_number, world.jobs.ids), *map(_number, world.past), self._stored))
        self._last += 1
        return self._last


def _largest_stored(store: SqliteStore) -> int:
    """A task is kept longer than what the World knows of its job."""
    row = store.database.row("SELECT max(CAST(job_id AS INTEGER)) FROM tasks")
    return int(row[0] or 0) if row else 0


def _number(job: JobId) -> int:
    is_number = job.isascii() and job.isdecimal() and len(job) <= _MOST_DIGITS
    return int(job) if is_number else 0
