"""What becomes of those who wait in plain trees, worked out for all of them at once.

It is what `serving.py` and `standstill.py` come to, in columns over queues and rows. A tree in which somebody
might borrow, push others aside or slip in is left to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, FloatArray, IntArray, Partitions
from batuta.core.quota import MILLI
from batuta.quota.plain_quota import PlainQuota
from batuta.quota.plain_rows import PlainRows, Running


class Heads(NamedTuple):
    """The first of each queue that lets nobody pass, where there is one."""

    at: IntArray
    """Its place among those who wait."""
    queue: IntArray
    own: IntArray
    """What was left of its queue's own, …"""
    lends: IntArray
    """… and to borrow, when it was seen that this is not enough."""


class PlainBooks:
    """The books of plain trees, by queue or by tree, as they change from step to step."""

    def __init__(self, quota: PlainQuota, rows: PlainRows, ends_s: Callable[[], FloatArray]) -> None:
        """`ends_s` says when each job of the World will have ended."""
        self._quota, self._rows, self._ends_s = quota, rows, ends_s
        running, queues = rows.running, len(quota.names)
        used = np.bincount(running.queue, running.size * MILLI, queues).astype(np.int64)
        self.own: IntArray = quota.nominal - used
        """What a queue does not use of its own quota; below 0 where it borrows."""
        self.rest: IntArray = quota.trees.capacity - quota.trees.sums(used)
        """What nobody uses of a tree."""
        self._spare = _Spare(running, quota)
        self.served: BoolArray = np.zeros(len(rows.waiting.row), dtype=bool)
        self.kept = np.zeros(queues, dtype=np.int64)
        """What is kept for the head of a queue, …"""
        self.needed_s = np.full(queues, -np.inf)
        """… from when on that is needed, …"""
        self.needed_by = np.full(queues, -1, dtype=np.int64)
        """… and by the how manieth to end it will have been given back; -1 if it cannot be said."""
        self._in_vain = np.zeros(queues, dtype=bool)
        """Whether the head of a queue could never have what it needs."""
        self.would_have: BoolArray = self.served.copy()
        """Who would have quota if that were not kept for another."""
        self.left, self.free = self.own, self.own
        """What a queue may still use, and what if nothing were kept."""

    def settle(self) -> Heads:
        """Works all of it out."""
        # Who was above its limits before has to be brought down first.
        self._leave((self.rest < 0)[self._quota.at] | (self.own + self._quota.borrows < 0))
        self._fill()
        heads = self._keep()
        self._stand_still()
        return heads

    def forget_what_is_kept(self) -> None:
        """Growth may have it, for that can be taken back at any time."""
        self.own = self.own + self.kept
        self.rest = self.rest + self._quota.trees.sums(self.kept)

    def releases(self, place: int) -> tuple[IntArray, IntArray]:
        """Those who run in a tree, as they are listed; and who of them ends first, by its number there."""
        queues = self._quota.trees.rows(place)
        start, end = np.searchsorted(self._rows.running.queue, (queues.start, queues.stop)).tolist()
        listed = np.arange(start, end)
        ends_s = self._ends_s()[self._rows.running.row[listed]]
        return listed, np.argsort(ends_s, kind="stable")

    def _leave(self, queues: BoolArray) -> None:
        self._rows.leave(np.flatnonzero(queues))

    def _fill(self) -> None:
        """Serves each line from what belongs to its queue, as far as it goes."""
        waiting, lines = self._rows.waiting, self._rows.lines
        queue, needs = waiting.queue, waiting.needs
        self.served = lines.running(needs) <= self.own[queue]
        taken = lines.sums(needs * self.served)
        self.own = self.own - taken
        self.rest = self.rest - self._quota.trees.sums(taken)
        # Others have borrowed what belongs to somebody who wants it.
        self._leave((self.rest < 0)[self._quota.at])
        counts = lines.sums(self.served)
        first = (lines.starts + counts)[counts < lines.lengths]
        # Where the first that does not fit lets others pass, somebody who is as important may fit.
        may_pass = np.full(len(self.own), -1, dtype=np.int64)
        patient = first[~waiting.due[first]]
        may_pass[queue[patient]] = patient
        behind = ~self.served & (may_pass[queue] >= 0)
        if behind.any():
            alike = waiting.priority == waiting.priority[may_pass[queue]]
            self._rows.leave(queue[behind & alike & (needs <= self.own[queue])])

    def _keep(self) -> Heads:
        """Keeps what is left of a queue's own for its head."""
        quota, waiting = self._quota, self._rows.waiting
        blocking = np.flatnonzero(~self.served & waiting.due)
        queue, first = np.unique(waiting.queue[blocking], return_index=True)
        at, tree = blocking[first], quota.at[queue]
        needs, own = waiting.needs[at], self.own[queue]
        most = own + quota.borrows[queue]
        spare = self._spare.of(queue, waiting.priority[at])
        # For somebody who could never have it nothing is kept.
        self._in_vain[queue] = in_vain = needs > quota.most[queue]
        self.kept[queue] = kept = np.where(in_vain, 0, np.maximum(np.minimum(needs, own), 0))
        # One after the other they find what the ones before them have left. For whom that would do …
        by_tree = Partitions(np.bincount(tree, minlength=len(quota.trees)), quota.trees.capacity)
        rest = self.rest[tree] - (by_tree.running(kept) - kept)
        left = np.minimum(rest, most)
        hopeful = needs <= np.maximum(left, own) + spare
        short = (kept > 0) & (left < kept)
        # … looks a second time, when something is kept for everybody else.
        self.rest = self.rest - quota.trees.sums(self.kept)
        rest = np.where(hopeful, self.rest[tree] + kept, rest)
        left = np.minimum(rest, most)
        can_be_served = needs <= np.maximum(left, own) + spare
        short |= (kept > 0) & (left < kept)
        self._rows.leave(queue[can_be_served | short])
        self._find_when(queue, needs, rest)
        self.own = self.own - self.kept
        own = np.maximum(own, 0)
        return Heads(at, queue, own, np.maximum(left - own, 0))

    def _find_when(self, queue: IntArray, needs: IntArray, rest: IntArray) -> None:
        """When so much will have been given back that a head fits for which something is kept."""
        quota, running = self._quota, self._rows.running
        gives_back = self._rows.settled.copy()
        gives_back &= np.bincount(quota.at[running.queue], minlength=len(gives_back)) > 0
        chosen = np.flatnonzero((self.kept[queue] > 0) & gives_back[quota.at[queue]])
        known: dict[int, tuple[IntArray, IntArray]] = {}
        for head in chosen.tolist():
            number = int(queue[head])
            place = int(quota.at[number])
            if place not in known:
                listed, first = self.releases(place)
                known[place] = listed[first], np.cumsum(running.size[listed[first]]) * MILLI
            order, given_back = known[place]
            needed_by = int(np.searchsorted(given_back, needs[head] - rest[head]))
            if quota.borrows[number] < needs[head]:
                own = np.cumsum(np.where(running.queue[order] == number, running.size[order], 0)) * MILLI
                short = needs[head] - self.own[number] - quota.borrows[number]
                needed_by = max(needed_by, int(np.searchsorted(own, short)))
            if needed_by < len(order):
                self.needed_by[number] = needed_by
                self.needed_s[number] = self._ends_s()[running.row[order[needed_by]]]

    def _stand_still(self) -> None:
        """Leaves the trees in which somebody could still be served; the books of others stay as they are."""
        quota, waiting = self._quota, self._rows.waiting
        queue, needs, own = waiting.queue, waiting.needs, self.own
        self.left = np.minimum(self.rest[quota.at], own + quota.borrows)
        self.free = self.left + self.kept
        possible = ~self.served & (needs <= quota.most[queue])
        self.would_have = possible & (self.kept > 0)[queue] & (needs <= self.free[queue])
        asking = np.flatnonzero(self.would_have)
        if asking.size:
            in_time = self._ends_s()[waiting.row[asking]] <= self.needed_s[queue[asking]]
            self._rows.leave(queue[asking[in_time]])
        pushes = waiting.priority >= self._pushes_from()[queue]
        borrowed = quota.trees.sums(own < 0) > 0
        reclaims = (quota.reclaims & borrowed[quota.at])[queue] & (needs <= own[queue])
        doubtful = np.flatnonzero(possible & (pushes | reclaims | (waiting.due & self._in_vain[queue])))
        theirs = queue[doubtful]
        could_have = np.maximum(self.left, own)[theirs] + self.kept[theirs]
        hopeful = needs[doubtful] <= could_have + self._spare.of(theirs, waiting.priority[doubtful])
        fits = possible & (needs <= self.left[queue])
        self._rows.leave(queue[fits])
        self._rows.leave(theirs[hopeful])

    def _pushes_from(self) -> FloatArray:
        """By queue: from this priority on a job could push somebody aside."""
        quota, running, waiting, lines = self._quota, self._rows.running, self._rows.waiting, self._rows.lines
        lowest = np.full(len(quota.names), np.inf)
        queues, starts = np.unique(running.queue, return_index=True)
        if queues.size:
            lowest[queues] = np.minimum.reduceat(running.priority, starts)
        # The last that was served of a line is the least important of them.
        counts = lines.sums(self.served)
        served = np.flatnonzero(counts)
        last = waiting.priority[(lines.starts + counts - 1)[served]]
        lowest[served] = np.minimum(lowest[served], last)
        found: FloatArray = np.where(quota.pushes, lowest + ~quota.equals, np.inf)
        return found


class _Spare:
    """What those of each queue have whom a job of some priority could push aside there."""

    def __init__(self, running: Running, quota: PlainQuota) -> None:
        movable = np.flatnonzero(~running.still)
        self._quota, self._priorities = quota, np.unique(running.priority[movable])
        rank = np.searchsorted(self._priorities, running.priority[movable])
        key = running.queue[movable] * (len(self._priorities) + 1) + rank
        order = np.argsort(key)
        self._keys = key[order]
        self._total = np.concatenate(([0], np.cumsum(running.size[movable][order] * MILLI)))

    def of(self, queue: IntArray, priority: IntArray) -> IntArray:
        quota, levels = self._quota, len(self._priorities) + 1
        below = np.searchsorted(self._priorities, priority + quota.equals[queue])
        start = np.searchsorted(self._keys, queue * levels)
        end = np.searchsorted(self._keys, queue * levels + below)
        found: IntArray = np.where(quota.pushes[queue], self._total[end] - self._total[start], 0)
        return found
