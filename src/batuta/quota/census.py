"""All jobs that quota concerns, tree by tree, and what can be seen of each of them.

Whatever a round reads of a job is seen here, but for the clock and for what nodes could give to it. So a tree
of cohorts whose jobs look as they did before gets the answers that it got before.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.eligibility import in_motion_or_left_alone, withheld
from batuta.core.world import World
from batuta.quota.doors import Door
from batuta.quota.loss import predicted_ends_s

_NO_QUEUE, _NOT_CONCERNED = -1, -2


class Census:
    """Counts everybody; no job is looked at by itself, for there are many thousands in each cycle."""

    def __init__(
        self,
        world: World,
        now_s: float,
        doors: Sequence[Door | None],
        number_of: dict[str, int],
        without: Set[int],
        patience_s: float,
    ) -> None:
        self._world, self._now_s = world, now_s
        self.without, self.patience_s = without, patience_s
        numbers = [_NOT_CONCERNED if door is None else number_of.get(door.queue, _NO_QUEUE) for door in doors]
        queue = world.jobs.queue
        number = np.array(numbers or [_NOT_CONCERNED], dtype=np.int64)[queue]
        concerned = np.flatnonzero(number > _NOT_CONCERNED)
        # Within a tree they stay as they are, the oldest first.
        order = concerned[np.argsort(number[concerned], kind="stable")]
        own = number[order]
        starts = np.flatnonzero(np.diff(own, prepend=_NOT_CONCERNED))
        trees, bounds = own[starts], [*starts.tolist(), len(order)]
        shut = np.array([door is not None and door.refusal is not None for door in doors] or [False])[queue]
        block, self._held = self._look(shut)
        block = block[order]
        self.tree_of = number
        """By row: the number of its tree; -1 if it names a queue that is not there, -2 if it names none."""
        self.rows: dict[int, IntArray] = {}
        """By tree, the oldest first."""
        self.seen: dict[int, IntArray] = {}
        """By tree: what is seen of each of these rows."""
        self.place = np.zeros(world.jobs.n, dtype=np.int64)
        """By row: its place among those of its tree."""
        self.place[order] = np.arange(len(order)) - np.repeat(starts, np.diff(bounds))
        for tree, start, end in zip(trees.tolist(), bounds[:-1], bounds[1:], strict=True):
            self.rows[tree], self.seen[tree] = order[start:end], block[start:end]

    def things(self, tree: int) -> list[Any]:
        """The values that are seen by their identity: while they live nothing else has it."""
        rows, held = self.rows[tree].tolist(), self._held
        # The first is asked for twice because a single one would not come as a tuple.
        jobs = itemgetter(rows[0], *rows)(self._world.jobs.jobs)
        return [jobs, [held[row] for row in rows if row in held] if held else []]

    @cached_property
    def ends_s(self) -> FloatArray:
        """When each job would have ended, if it had its `min` from now on."""
        return predicted_ends_s(self._world, self._now_s)

    def _look(self, shut: BoolArray) -> tuple[IntArray, dict[int, Any]]:
        """What is seen of each row, and by row what is seen by its identity beside the job itself."""
        world, jobs = self._world, self._world.jobs
        has, moving = jobs.held, in_motion_or_left_alone(jobs, self._now_s)
        still = np.zeros(jobs.n, dtype=bool) if moving is None else moving
        hushed = withheld(jobs, self._now_s) if jobs.held_back else np.zeros(jobs.n, dtype=bool)
        stuck = np.zeros(jobs.n, dtype=bool)
        stuck[list(self.without)] = True
        # A job that may be changed counts with its `min`, whatever it has.
        sizes = np.where(still | shut, has, has > 0)
        running = np.flatnonzero(has)
        listed: list[int] = running.tolist()
        held: list[Any] = list(map(world.flavors.get, map(jobs.ids.__getitem__, listed)))
        if None in held:
            held = [own or jobs.placements[row] for row, own in zip(listed, held, strict=True)]
        held_by = np.zeros(jobs.n, dtype=np.int64)
        held_by[running] = np.fromiter(map(id, held), np.int64, len(held))
        columns = (
            np.fromiter(map(id, jobs.jobs), np.int64, jobs.n),
            held_by,
            sizes,
            np.where(shut, jobs.lost_gpus, 0),
            still,
            hushed,
            stuck,
            jobs.submit_s <= self._now_s - self.patience_s,
        )
        return np.stack(columns, axis=1), dict(zip(listed, held, strict=True))
