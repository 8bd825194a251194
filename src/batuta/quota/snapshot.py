"""What a scheduling cycle starts from: the jobs of each cluster queue, and what is used of quota."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.eligibility import in_motion_or_left_alone, withheld
from batuta.core.quota import ClusterQueue, Flavors, Quota, Strategy, Within
from batuta.core.world import World
from batuta.quota.cache import AdmissionCache
from batuta.quota.fair_sharing import FairSharingPreemption, Shares
from batuta.quota.flavors import Assignment, FlavorAssigner, Mode, PreemptionPossibility
from batuta.quota.preemption import ClassicPreemption, PreemptionContext, PreemptionTarget, lost_gpu_s, predicted_ends_s
from batuta.quota.reasons import Refusal
from batuta.quota.tree import Amounts, Node, QuotaTree
from batuta.quota.workload import (
    AdmittedWorkloads,
    QuotaRequest,
    QuotaRequests,
    ResolvedQueue,
    Workload,
    resolve_queues,
)


@dataclass(slots=True)
class ClusterQueueSnapshot:
    """The jobs of one cluster queue."""

    strict: bool
    within: Within
    prechecked: bool  # whether prechecks hold: it preempts none while it borrows, and has one cohort above it at most
    running: dict[int, tuple[Flavors, Amounts]] = field(default_factory=dict)
    """By row: what it uses, counted with its `min`; a job that must not be touched now with all it has."""
    waiting: list[int] = field(default_factory=list)  # rows, the one whose turn it is first
    spare: dict[int, Amounts] = field(default_factory=dict)  # what has been worked out of who could go, by priority


class Snapshot:
    """Reads all jobs, and adds what they use to the tree. One pass over all of them, so it is terse."""

    def __init__(
        self,
        world: World,
        now_s: float,
        tree: QuotaTree,
        cache: AdmissionCache,
        scope: tuple[Set[str], BoolArray] | None = None,
    ) -> None:
        """Reads some queues and the rows of their jobs (`scope`); all of them by default."""
        jobs = world.jobs
        self._world, self._tree, self._cache, self._scope = world, tree, cache, scope
        self.requests = QuotaRequests(world, tree, cache.alike)
        self.cluster_queues = {
            queue.name: self._cluster_queue(queue)
            for queue in world.effective_quota.cluster_queues
            if scope is None or queue.name in scope[0]
        }
        self.priorities: list[int] = jobs.priority.tolist()
        self.request_of: dict[int, QuotaRequest] = {}  # by row of pending jobs
        self.quiet: list[int] = []  # rows of jobs that shall not run now, whatever quota says
        self.still: dict[int, int] = {}  # rows of jobs that are not to be changed now, and the size that they keep
        self.no_flavor: list[int] = []  # rows for whose jobs there are nodes, but none that their queue has quota for
        self.stopped: list[tuple[ResolvedQueue, list[int]]] = []
        """Doors through which nothing goes now, and the rows of those before and behind them."""
        self._call(now_s)
        self._read_requests()
        for name, cq in self.cluster_queues.items():
            self._enter(name, cq)

    def _cluster_queue(self, queue: ClusterQueue) -> ClusterQueueSnapshot:
        parent, rules = self._tree.queues[queue.name].parent, queue.preemption
        flat = parent is None or parent.parent is None
        prechecked = flat and not rules.while_borrowing and not self._world.effective_quota.fair_sharing
        return ClusterQueueSnapshot(queue.strategy is Strategy.STRICT_FIFO, rules.within, prechecked)

    def _call(self, now_s: float) -> None:
        """Finds those that run and those that wait, by the local queue through which they come."""
        jobs, resolved_queues = self._world.jobs, resolve_queues(self._world, self._cache.resolved_queues)
        if not resolved_queues:
            return
        concerned = np.array([resolved is not None for resolved in resolved_queues])[jobs.queue]
        if self._scope is not None:
            concerned &= self._scope[1]
        has = jobs.held
        waits = concerned & (has == 0)
        if jobs.held_back:
            suspended = withheld(jobs, now_s)
            self.quiet = np.flatnonzero(waits & suspended).tolist()
            waits &= ~suspended
        running = self._by_queue(np.flatnonzero(concerned & (has > 0)))
        waiting = self._by_queue(np.flatnonzero(waits))
        moving = in_motion_or_left_alone(jobs, now_s)
        still: list[bool] = [] if moving is None else moving.tolist()
        for number in sorted(running.keys() | waiting.keys()):
            resolved = resolved_queues[number]
            assert resolved is not None
            self._sort_in(resolved, running.get(number, []), waiting.get(number, []), still)

    def _by_queue(self, rows: IntArray) -> dict[int, list[int]]:
        """Rows by the number of the queue that they name: by priority, then by age, as rows are numbered."""
        jobs = self._world.jobs
        number = jobs.queue[rows]
        order = np.lexsort((-jobs.priority[rows], number))
        listed: list[int] = rows[order].tolist()
        number = number[order]
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        resolved_queues = number[starts]
        bounds = pairwise([*starts.tolist(), len(listed)])
        return {
            resolved: listed[start:end] for resolved, (start, end) in zip(resolved_queues.tolist(), bounds, strict=True)
        }

    def _sort_in(self, resolved: ResolvedQueue, running: list[int], waiting: list[int], still: list[bool]) -> None:
        cq, jobs = self.cluster_queues.get(resolved.queue), self._world.jobs
        if resolved.refusal is not None:
            self.stopped.append((resolved, running + waiting))
        elif cq is not None:
            cq.waiting = self._merged(cq.waiting, waiting)
        if cq is None:
            return
        flavors_of = self._world.flavors
        for row in sorted(running):
            job = jobs.jobs[row]
            flavors = flavors_of.get(job.id) or self.requests.found(row, resolved.queue)
            size = job.min
            if still and still[row]:
                size = self.still[row] = max(int(jobs.held[row]), job.min)
            cq.running[row] = flavors, self.requests.usage(job, flavors, size)

    def _merged(self, pending: list[int], more: list[int]) -> list[int]:
        """One order for jobs that come to a cluster queue by several local queues."""
        if not pending or not more:
            return pending or more
        priorities = self.priorities
        return sorted(pending + more, key=lambda row: (-priorities[row], row))

    def _read_requests(self) -> None:
        """Notes what each pending job requests. Those that can have nothing, whatever is free, leave."""
        pending_queues = [cq.waiting for cq in self.cluster_queues.values()]
        rows = np.fromiter(chain.from_iterable(pending_queues), np.int64)
        if not rows.size:
            return
        options = np.repeat(
            [self._cache.options_of[name] for name in self.cluster_queues], [len(pending) for pending in pending_queues]
        )
        requests, which = self.requests.of_all(rows, self._cache.all_options, options)
        self.request_of = dict(zip(rows.tolist(), map(requests.__getitem__, which.tolist()), strict=True))
        if all(request.kinds and not request.needs_no_quota for request in requests):
            return
        for cq in self.cluster_queues.values():
            # A workload without requests waits neither for quota nor for its turn behind others.
            own = [(row, request) for row in cq.waiting if not (request := self.request_of[row]).needs_no_quota]
            # Without nodes for it at all the next step says why, in its own words.
            self.no_flavor += [row for row, request in own if not request.kinds and request.ever]
            cq.waiting = [row for row, request in own if request.kinds]

    def _enter(self, name: str, cq: ClusterQueueSnapshot) -> None:
        """Books what runs in a queue."""
        total: Amounts = {}
        for _, usage in cq.running.values():
            for fr, amount in usage.items():
                total[fr] = total.get(fr, 0) + amount
        self._tree.queues[name].add(total)

    def could_go(self, cq: ClusterQueueSnapshot, priority: int) -> Amounts:
        """What those of a queue have whom a job of this priority could preempt there."""
        if cq.within is Within.NEVER:
            return {}
        return self._spare(cq, priority + (cq.within is Within.LOWER_OR_NEWER_EQUAL_PRIORITY))

    def _spare(self, cq: ClusterQueueSnapshot, below: int) -> Amounts:
        """What preemptible jobs below a priority have; not those just served, who go by priority anyway."""
        found = cq.spare.get(below)
        if found is None:
            found = cq.spare[below] = {}
            for row, (_, usage) in cq.running.items():
                if self.priorities[row] < below and row not in self.still:
                    for fr, amount in usage.items():
                        found[fr] = found.get(fr, 0) + amount
        return found


class QuotaRelease(NamedTuple):
    """What a workload that has quota now will give back, and when."""

    ends_s: float
    queue: Node
    usage: Amounts
    key: Hashable = None


class JobWorkloads(AdmittedWorkloads):
    """Jobs that have quota in this cycle, as rows for as long as preemption does not compare them."""

    def __init__(
        self, world: World, now_s: float, tree: QuotaTree, snapshot: Snapshot, without: Set[int], patience_s: float
    ) -> None:
        super().__init__()
        self._world, self._now_s, self._tree, self._snapshot = world, now_s, tree, snapshot
        self._due: list[bool] = (world.jobs.submit_s <= now_s - patience_s).tolist()
        self._releases_of: dict[Node, list[QuotaRelease]] = {}
        self.without = without  # rows for which there is no place now: they get no quota
        self.new: dict[str, dict[int, Flavors]] = {name: {} for name in snapshot.cluster_queues}
        """By queue and row: those that get quota in this cycle, and in which flavors."""
        self.weighed: set[str] = set()
        """Queues whose preemption targets were compared: that is never twice the same, for work goes on."""

    def blocks(self, row: int) -> bool:
        """Whether a job lets no other of its queue pass that would delay it."""
        return self._due[row] and row not in self.without

    def waiting(self, queue: Node, row: int) -> Workload:
        """A job that waits for quota of a queue, as a workload."""
        job, request = self._world.jobs.jobs[row], self._snapshot.request_of[row]
        return Workload(
            row,
            queue,
            request.pod_sets,
            job.priority,
            row,
            only=request.kinds,
            due=self._due[row],
            flavor_choice=request.flavor_choice,
            shape=request,
            request=request,
        )

    def make(self, name: str) -> dict[Hashable, Workload]:
        found = self.fresh(name)
        world, node = self._world, self._tree.queues[name]
        if self._snapshot.cluster_queues[name].running:
            self.weighed.add(name)
        for row, (flavors, usage) in self._snapshot.cluster_queues[name].running.items():
            job = world.jobs.jobs[row]
            lost_s = lost_gpu_s(world, row, self._now_s)
            workload = Workload(row, node, (), job.priority, row, lost_s)
            workload.flavors, workload.usage, workload.stays = flavors, usage, row in self._snapshot.still
            workload.since = float(np.fmax(world.jobs.last_start_s[row], 0.0))
            found[row] = workload
        return found

    def lowest_unseen(self, name: str) -> float:
        rows = chain(self._snapshot.cluster_queues[name].running, self.new[name])
        return min(map(self._snapshot.priorities.__getitem__, rows), default=math.inf)

    def fresh(self, name: str) -> dict[Hashable, Workload]:
        """Those of a queue that got their quota in this cycle."""
        found: dict[Hashable, Workload] = {}
        queue = self._tree.queues[name]
        for row, flavors in self.new[name].items():
            workload = found[row] = self.waiting(queue, row)
            usage = self._snapshot.request_of[row].usage
            workload.flavors, workload.usage, workload.since = flavors, usage, self._now_s
        return found

    def ends_s(self, row: Hashable) -> float:
        """When a job will have ended, if it had its `min` from now on."""
        assert isinstance(row, int)
        return self._listed_ends_s[row]

    @cached_property
    def _listed_ends_s(self) -> list[float]:
        found: list[float] = predicted_ends_s(self._world, self._now_s).tolist()
        return found

    def releases(self, root: Node) -> list[QuotaRelease]:
        """What those give back who run in a tree, the soonest first."""
        known = self._releases_of.get(root)
        if known is None:
            known = self._releases_of[root] = [
                QuotaRelease(self._listed_ends_s[row], node, usage, row)
                for node in root.queues()
                for row, (_, usage) in self._snapshot.cluster_queues[node.name].running.items()
            ]
            known.sort(key=lambda one: one.ends_s)
        return known


_NO_CANDIDATES = PreemptionPossibility(Mode.NO_CANDIDATES, 0)


class QuotaState:
    """Books quota in and out, and answers what a workload could have as things stand."""

    def __init__(self, quota: Quota, tree: QuotaTree | None = None, admitted: AdmittedWorkloads | None = None) -> None:
        """`tree` is an empty one of this quota; `admitted` has the workloads whose use is in it already."""
        self.quota, self.tree = quota, QuotaTree(quota) if tree is None else tree
        self.admitted = AdmittedWorkloads() if admitted is None else admitted
        self.shares = Shares(self.tree.frs)
        self._preemption: FairSharingPreemption | ClassicPreemption = (
            FairSharingPreemption(quota, self.admitted, self.shares)
            if quota.fair_sharing
            else ClassicPreemption(quota, self.admitted)
        )
        self._assigner = FlavorAssigner(quota, self.tree, self._preemption_possibility)
        self.turns: dict[Node, int] = {}  # by tree: how often something was booked there
        self._without_preemption = False
        self._last: tuple[PreemptionContext, list[PreemptionTarget]] | None = None

    def book(self, workload: Workload, usage: Amounts, since: float | None = None) -> None:
        """From now on the workload has so much."""
        root = workload.queue.root
        turn = self.turns[root] = self.turns.get(root, 0) + 1
        workload.usage, workload.since = usage, float(turn) if since is None else since
        workload.queue.add(usage)
        self.admitted[workload.queue.name][workload.key] = workload

    def admit(self, workload: Workload, found: Assignment) -> None:
        """Gives a workload what was found for it."""
        workload.flavors, workload.counts = tuple(found.flavors.items()), found.counts
        self.book(workload, found.usage)

    def release(self, workload: Workload) -> None:
        del self.admitted[workload.queue.name][workload.key]
        workload.queue.remove(workload.usage)
        workload.usage = {}

    @contextmanager
    def without(self, workloads: list[Workload]) -> Iterator[None]:
        """As if these had nothing."""
        for workload in workloads:
            workload.queue.remove(workload.usage)
        try:
            yield
        finally:
            for workload in workloads:
                workload.queue.add(workload.usage)

    def nominate(self, workload: Workload) -> tuple[Assignment, list[PreemptionTarget]]:
        """Return the flavor assignment and the preemption targets; with fewer replicas if need be."""
        self._last = None
        whole = self._assigner.assign(workload)
        if whole.mode is Mode.FIT:
            return whole, []
        targets = self._for(workload, whole)
        if targets or all(pods.min_count is None for pods in workload.pod_sets):
            return whole, targets
        return self._fewer(workload) or (whole, [])

    def fit(self, workload: Workload) -> Assignment | None:
        """Where the workload would get its quota without preemption; None for nowhere."""
        if workload.flavor_choice is not None and workload.flavor_choice.amount > workload.queue.left(
            workload.flavor_choice.fr
        ):
            return None
        self._without_preemption = True
        found = self._assigner.assign(workload)
        self._without_preemption = False
        return found if found.mode is Mode.FIT else None

    def why(self, queue: Node, fr: int, needs: int) -> Refusal:
        """What a queue is short of, in numbers."""
        return self._assigner.why(queue, fr, needs)

    def _fewer(self, workload: Workload) -> tuple[Assignment, list[PreemptionTarget]] | None:
        """The largest number of replicas that would do, all pod sets reduced alike; by bisection."""
        spare = [0 if pods.min_count is None else max(0, pods.count - pods.min_count) for pods in workload.pod_sets]
        low, high, best = 0, sum(spare) + 1, None
        while low < high:
            less = (low + high) // 2
            found = self._with_fewer(workload, spare, less) if less else None
            if found is None:
                low = less + 1
            else:
                best, high = found, less
        return best

    def _with_fewer(
        self, workload: Workload, spare: list[int], less: int
    ) -> tuple[Assignment, list[PreemptionTarget]] | None:
        total = sum(spare)
        counts = tuple(pods.count - own * less // total for pods, own in zip(workload.pod_sets, spare, strict=True))
        found = self._assigner.assign(workload, counts)
        if found.mode is Mode.FIT:
            return found, []
        targets = self._for(workload, found)
        return (found, targets) if targets else None

    def _for(self, workload: Workload, found: Assignment) -> list[PreemptionTarget]:
        if found.mode in (Mode.NO_FIT, Mode.FIT):
            return []
        if found.mode is Mode.NO_CANDIDATES and len(found.short) == 1:
            # That was the whole question, and it is answered.
            return []
        return self._find(PreemptionContext(workload, found.usage, found.short))

    def _find(self, context: PreemptionContext) -> list[PreemptionTarget]:
        """Whom to preempt. What was asked for one flavor is mostly the answer for the whole."""
        if self._last is None or self._last[0] != context:
            self._last = context, self._preemption.find(context)
        return self._last[1]

    def _preemption_possibility(self, workload: Workload, wanted: Amounts) -> PreemptionPossibility:
        if self._without_preemption:
            return _NO_CANDIDATES
        (fr, amount), *_ = wanted.items()
        targets = self._find(PreemptionContext(workload, wanted, wanted))
        if not targets:
            return PreemptionPossibility(Mode.NO_CANDIDATES, workload.queue.level(fr, amount)[0])
        with self.without([target.workload for target in targets]):
            level, _ = workload.queue.level(fr, amount)
        own = any(target.workload.queue is workload.queue for target in targets)
        return PreemptionPossibility(Mode.PREEMPT if own else Mode.RECLAIM, level)
