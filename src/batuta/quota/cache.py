"""What `admit` keeps from cycle to cycle: results, and fingerprints that say whether they still hold."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_, itemgetter
from typing import Any, NamedTuple

import numpy as np

from batuta.core.admission import Budget
from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.eligibility import in_motion_or_left_alone, withheld
from batuta.core.quota import Flavors, Quota
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.preemption import predicted_ends_s
from batuta.quota.tree import QuotaTree
from batuta.quota.workload import FlavorOptions, QuotaRequest, ResolvedQueue, options_of


class Admissions(NamedTuple):
    """Jobs of one queue that get quota, in the order in which they got it."""

    places: list[int]
    flavors: list[Flavors]
    requests: list[QuotaRequest]


@dataclass(slots=True)
class AdmissionResult:
    """What is said to the jobs of a tree, each by its place in it: that stays when rows are numbered anew."""

    cap: IntArray
    refused: list[int]
    reasons: list[tuple[Reason, Evidence]]
    new: dict[str, Admissions]  # by queue
    admitted: list[tuple[int, Flavors]]  # the workloads that had quota before the cycle, by place
    preempted: dict[int, Reason]
    contested: bool  # whether some got quota while others lost some or wait
    grown_from: IntArray | None = None  # the caps from which the budgets were worked out: nodes may have lowered them
    budgets: dict[str, list[Budget]] = field(default_factory=dict)  # by queue; their rows are places


_NO_QUEUE, _NOT_CONCERNED = -1, -2


class Fingerprints:
    """The jobs of each tree of cohorts, and what a cycle reads of them, as columns.

    Whatever a cycle reads of a job is in here, but for the clock and for what nodes could give to it. So a
    tree whose fingerprint is as before gets the result that it got before.
    """

    def __init__(
        self,
        world: World,
        now_s: float,
        resolved_queues: Sequence[ResolvedQueue | None],
        number_of: dict[str, int],
        without: Set[int],
        patience_s: float,
    ) -> None:
        self._world, self._now_s = world, now_s
        self.without, self.patience_s = without, patience_s
        numbers = [
            _NOT_CONCERNED if resolved is None else number_of.get(resolved.queue, _NO_QUEUE)
            for resolved in resolved_queues
        ]
        queue = world.jobs.queue
        number = np.array(numbers or [_NOT_CONCERNED], dtype=np.int64)[queue]
        concerned = np.flatnonzero(number > _NOT_CONCERNED)
        # Within a tree they stay as they are, the oldest first.
        order = concerned[np.argsort(number[concerned], kind="stable")]
        own = number[order]
        starts = np.flatnonzero(np.diff(own, prepend=_NOT_CONCERNED))
        trees, bounds = own[starts], [*starts.tolist(), len(order)]
        stopped = np.array(
            [resolved is not None and resolved.refusal is not None for resolved in resolved_queues] or [False]
        )[queue]
        block, self._held = self._look(stopped)
        block = block[order]
        self.tree_of = number
        """By row: the number of its tree; -1 if it names a queue that is not there, -2 if it names none."""
        self.rows: dict[int, IntArray] = {}  # by tree, the oldest first
        self.fingerprint: dict[int, IntArray] = {}  # by tree: what is seen of each of these rows
        self.place = np.zeros(world.jobs.n, dtype=np.int64)  # by row: its place among those of its tree
        self.place[order] = np.arange(len(order)) - np.repeat(starts, np.diff(bounds))
        for tree, start, end in zip(trees.tolist(), bounds[:-1], bounds[1:], strict=True):
            self.rows[tree], self.fingerprint[tree] = order[start:end], block[start:end]

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

    def _look(self, stopped: BoolArray) -> tuple[IntArray, dict[int, Any]]:
        """What is seen of each row, and by row what is seen by its identity beside the job itself."""
        world, jobs = self._world, self._world.jobs
        has, moving = jobs.held, in_motion_or_left_alone(jobs, self._now_s)
        still = np.zeros(jobs.n, dtype=bool) if moving is None else moving
        suspended = withheld(jobs, self._now_s) if jobs.held_back else np.zeros(jobs.n, dtype=bool)
        unplaceable = np.zeros(jobs.n, dtype=bool)
        unplaceable[list(self.without)] = True
        # A job that may be changed counts with its `min`, whatever it has.
        sizes = np.where(still | stopped, has, has > 0)
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
            np.where(stopped, jobs.lost_gpus, 0),
            still,
            suspended,
            unplaceable,
            jobs.submit_s <= self._now_s - self.patience_s,
        )
        return np.stack(columns, axis=1), dict(zip(listed, held, strict=True))


class EndOrder(NamedTuple):
    """What the answers owe to the clock: who will have ended before whom. Jobs are meant by their place in the tree."""

    running: IntArray  # the workloads that will give quota back, as they are listed, …
    first: IntArray  # … and which of them do so first, as far as it mattered, by their number in that list
    asked: IntArray  # Workloads that wanted what is reserved for others, …
    until: IntArray  # … whose end they would have had to be before, by its number in `first`, …
    later: BoolArray  # … and whether they would end later than that

    def holds(self, fingerprints: Fingerprints, tree: int) -> bool:
        rows = fingerprints.rows[tree]
        ends_s = fingerprints.ends_s[rows]
        given_back_s = ends_s[self.running]
        first = np.argsort(given_back_s, kind="stable")[: len(self.first)]
        if not np.array_equal(first, self.first):
            return False
        return np.array_equal(ends_s[self.asked] > given_back_s[first[self.until]], self.later)


class CacheEntry(NamedTuple):
    """The result of one tree of cohorts, and what it was made from."""

    fingerprint: IntArray
    things: Sequence[Any]  # kept alive, because the fingerprint knows them by their identity
    end_order: EndOrder | None
    result: AdmissionResult

    def holds(self, fingerprints: Fingerprints, tree: int) -> bool:
        """Whether a cycle would come to the same: nothing that it would read has changed."""
        return np.array_equal(self.fingerprint, fingerprints.fingerprint[tree]) and (
            self.end_order is None or self.end_order.holds(fingerprints, tree)
        )


@dataclass(slots=True)
class AdmissionCache:
    """What can be kept for as long as quota stays the same: it makes `admit` faster and changes no result.

    It belongs to one loop: two cycles at the same time would write into the same tree. A caller that decides
    beside the engine takes a profile of its own.
    """

    _tree: tuple[Quota, QuotaTree] | None = None
    resolved_queues: dict[tuple[str, str], ResolvedQueue | None] = field(default_factory=dict)
    """By namespace and name of a queue; None for jobs that quota does not concern."""
    all_options: list[FlavorOptions] = field(default_factory=list)
    """What there is to choose from in queues: mostly the same in many of them."""
    options_of: dict[str, int] = field(default_factory=dict)  # by queue: the number of its flavor options
    alike: dict[tuple[object, ...], QuotaRequest] = field(default_factory=dict)
    """What jobs that are alike ask for: the very same, whenever they came, for as long as nodes stay."""
    entries: dict[int, CacheEntry] = field(default_factory=dict)  # by number of a tree of cohorts: its last result
    number_of: dict[str, int] = field(default_factory=dict)  # by queue: the number of its tree
    _reach: list[list[int]] = field(default_factory=list)  # what nodes could give to jobs, by what these want of nodes

    def empty_tree(self, quota: Quota) -> QuotaTree:
        if self._tree is None or self._tree[0] is not quota:
            tree = QuotaTree(quota)
            self._tree = quota, tree
            self.resolved_queues, self.options_of, self.alike, self.entries = {}, {}, {}, {}
            number: dict[FlavorOptions, int] = {}
            for queue in quota.cluster_queues:
                self.options_of[queue.name] = number.setdefault(options_of(queue), len(number))
            self.all_options = list(number)
            roots = dict.fromkeys(node.root for node in tree.queues.values())
            numbers = {root: number for number, root in enumerate(roots)}
            self.number_of = {name: numbers[node.root] for name, node in tree.queues.items()}
        self._tree[1].clear()
        return self._tree[1]

    def check_nodes(self, world: World) -> None:
        """If nodes could give more or less to some jobs than before, no answer holds any more."""
        before, now = self._reach, list(world.caches.reach.values())
        if len(now) < len(before) or not all(map(is_, before, now)):
            self.alike, self.entries = {}, {}
        self._reach = now
