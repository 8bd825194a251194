"""Ids of new jobs: decimal numbers, counted up, never given twice."""

from __future__ import annotations

from batuta.core.job import JobId
from batuta.core.world import World
from batuta.store.records import MOST_DIGITS
from batuta.store.store import Store


class JobNumbers:
    """Counts on from the largest number that was ever given. For the engine's thread only."""

    def __init__(self, store: Store) -> None:
        # A task is kept longer than what the World knows of its job.
        self._stored = store.tasks.largest_number()
        self._last: int | None = None

    def next(self, world: World) -> int:
        if self._last is None:
            self._last = max((*map(_number, world.jobs.ids), *map(_number, world.past), self._stored))
        self._last += 1
        return self._last


def _number(job: JobId) -> int:
    is_number = job.isascii() and job.isdecimal() and len(job) <= MOST_DIGITS
    return int(job) if is_number else 0
