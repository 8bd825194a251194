"""Step 1 of a cycle: who may run by quota, in which flavor, and what each may grow to.

A job's `min` is what it holds quota for. Growth above that takes what is idle, and is given back without any
preemption: it is worked out anew in each cycle, from what the `min`s leave. No tree of cohorts depends on
another.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from batuta.core.admission import NO_ROWS, Admitted, Budget
from batuta.core.allocate import assign_types
from batuta.core.arrays import IntArray
from batuta.core.job import NO_RESTART_S
from batuta.core.node_table import NodeRequirements, within_reach
from batuta.core.quota import DEFAULT_QUEUE, Flavors, rest_of
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World
from batuta.quota.cache import AdmissionCache, AdmissionResult, Admissions, CacheEntry, EndOrder, Fingerprints
from batuta.quota.cycle import Scheduler
from batuta.quota.growth import Growers, grow
from batuta.quota.nominal_quota import NominalQuotaAdmission, PendingQueue
from batuta.quota.preemption import PreemptionReason, PreemptionTarget, evict_over_quota
from batuta.quota.reasons import ReasonTexts, Refusal, about_rest, reason_for
from batuta.quota.reservation import EndComparison, Reservations
from batuta.quota.snapshot import JobWorkloads, QuotaState, Snapshot
from batuta.quota.tree import QuotaTree
from batuta.quota.workload import QuotaRequests, ResolvedQueue, Workload, resolve_queues

_EVICTED = {
    PreemptionReason.WITHIN_QUEUE: Reason.PUSHED_ASIDE,
    PreemptionReason.RECLAIMED: Reason.RECLAIMED,
    PreemptionReason.RECLAIMED_WHILE_BORROWING: Reason.RECLAIMED,
    PreemptionReason.FAIR_SHARING: Reason.SHARED_OUT,
}


class SchedulingCycle:
    """Gives out quota in some trees: snapshot, nominate, order, admit or preempt, grow."""

    def __init__(
        self,
        world: World,
        now_s: float,
        trees: Sequence[int],
        fingerprints: Fingerprints,
        tree: QuotaTree,
        cache: AdmissionCache,
    ) -> None:
        self.trees = trees
        self._world, self._now_s = world, now_s
        self._fingerprints, self._number_of = fingerprints, cache.number_of
        chosen = set(trees)
        queues = {name for name, number in cache.number_of.items() if number in chosen}
        scope = queues, np.isin(fingerprints.tree_of, trees)
        self._snapshot = Snapshot(world, now_s, tree, cache, scope)
        self._workloads = JobWorkloads(
            world, now_s, tree, self._snapshot, fingerprints.without, fingerprints.patience_s
        )
        self._state = QuotaState(world.effective_quota, tree, self._workloads)
        self._reservations = Reservations(self._state, self._workloads.ends_s, self._workloads.releases)
        self._nominal_quota = NominalQuotaAdmission(self._snapshot, self._state, self._reservations, self._workloads)
        self._cap: IntArray = world.jobs.max.copy()
        self._refused: dict[int, tuple[Reason, Evidence]] = {}
        self._evicted: dict[int, Reason] = {}
        self._contested: set[int] = set()  # trees in which some lost quota or wait

    def serve(self) -> dict[int, AdmissionResult]:
        """Who gets quota and who waits, by tree."""
        # 1. What is stopped or above its limits gives quota back, …
        self._apply_stop_policies()
        # (of these trees only: others may have been served before, and stand above their limits)
        for workload in evict_over_quota(self._state, self._snapshot.cluster_queues, self._may_be_evicted):
            self._evict(workload, Reason.QUOTA_CUT)
        # 2. … each queue's own quota goes to its own workloads, before any of it is lent, …
        self._nominal_quota.serve()
        # 3. … and cycles over the heads of all queues give out the rest, by borrowing and preemption.
        refusals: dict[Hashable, Refusal] = {}
        for waiting in self._pending_queues():
            scheduler = Scheduler(self._state, waiting, self._reservations)
            scheduler.settle(self._nominal_quota.let_in, self._preempt)
            refusals.update(scheduler.refusals)
        self._refuse_the_rest(refusals)
        self._reservations.forget()
        return self._results()

    def grow(self, cap: IntArray, results: Mapping[int, AdmissionResult]) -> None:
        """Works out what admitted workloads may grow to, given the largest size that each may have."""
        tree, place = self._state.tree, self._fingerprints.place
        growers = [Growers(tree.queues[name], self._resizable(name)) for name in self._snapshot.cluster_queues]
        for number in self.trees:
            results[number].grown_from = cap[self._fingerprints.rows[number]]
            results[number].budgets = {}
        for queue, budget in grow(self._world, self._state, growers, cap):
            own = results[self._number_of[queue.name]].budgets.setdefault(queue.name, [])
            own.append(Budget(place[budget.rows], budget.gpus, budget.beside))

    def as_cache_entries(self, results: Mapping[int, AdmissionResult]) -> dict[int, CacheEntry]:
        """What is worth remembering of each tree: not where work that would be lost was weighed."""
        weighed = {self._number_of[name] for name in self._workloads.weighed}
        # Who came last is found by turns and by seconds: that is settled only once there are more seconds.
        queues = self._state.tree.queues
        early = {
            number
            for name, number in self._number_of.items()
            if self._state.turns.get(queues[name].root, 0) >= self._now_s
        }
        asked: dict[int, list[EndComparison]] = {}
        for one in self._reservations.asked:
            asked.setdefault(self._number_of[one.queue.name], []).append(one)
        fingerprints = self._fingerprints
        return {
            number: CacheEntry(
                fingerprints.fingerprint[number],
                fingerprints.things(number),
                self._end_order(asked[number]) if number in asked else None,
                results[number],
            )
            for number in self.trees
            if number >= 0 and number not in weighed and number not in early
        }

    def _end_order(self, asked: list[EndComparison]) -> EndOrder:
        """Whose ends were compared in a tree."""
        root, place = asked[0].queue.root, self._fingerprints.place
        cluster_queues = (self._snapshot.cluster_queues[queue.name] for queue in root.queues())
        listed = [row for cq in cluster_queues for row in cq.running]
        number_of: dict[Hashable, int] = {row: number for number, row in enumerate(listed)}
        count = 1 + max(one.number for one in asked)
        first = [number_of[one.key] for one in self._workloads.releases(root)[:count]]
        keys = [one.key for one in asked]
        return EndOrder(
            place[listed],
            np.array(first, dtype=np.int64),
            place[np.array(keys, dtype=np.int64)],
            np.array([one.number for one in asked], dtype=np.int64),
            np.array([one.later for one in asked], dtype=bool),
        )

    def _pending_queues(self) -> list[dict[str, PendingQueue]]:
        """The waiting workloads, tree by tree."""
        found: dict[int, dict[str, PendingQueue]] = {}
        for name, cq in self._snapshot.cluster_queues.items():
            number = self._number_of[name]
            if cq.waiting:
                found.setdefault(number, {})[name] = self._nominal_quota.pending(name)
        return list(found.values())

    def _may_be_evicted(self, workload: Workload) -> bool:
        """Whether less quota than before may cost a job its GPUs: not if it could not come back from that."""
        return not workload.stays and float(self._world.jobs.restart_s[workload.row]) < NO_RESTART_S

    def _apply_stop_policies(self) -> None:
        """What keeps jobs out, or sends them away, before quota is looked at."""
        jobs, quota = self._world.jobs, self._world.effective_quota
        self._cap[self._snapshot.quiet] = 0
        for row, most in self._snapshot.still.items():
            # Also where a policy may change what is in motion, it gets no more than it has.
            self._cap[row] = min(int(self._cap[row]), most)
        for row in self._snapshot.no_flavor:
            self._refuse(row, Reason.NO_MATCHING_FLAVOR)
        for resolved, rows in self._snapshot.stopped:
            reason, evidence = reason_for(resolved.refusal, leaving=resolved.queue in quota.leaving)
            for row in rows:
                if not jobs.held[row]:
                    self._refuse(row, reason, evidence)
                elif resolved.drains and row not in self._snapshot.still:
                    workload = self._state.admitted[resolved.queue][row]
                    self._state.release(workload)
                    self._evict(workload, Reason.QUEUE_DRAINED)
                else:
                    self._keep_size(row, resolved, reason, evidence)

    def _keep_size(self, row: int, resolved: ResolvedQueue, reason: Reason, evidence: Evidence) -> None:
        """A held queue starts nothing; what runs goes on at its size, also when it has to be repaired."""
        jobs = self._world.jobs
        job, has = jobs.jobs[row], int(jobs.held[row])
        own = min(int(self._cap[row]), has + int(jobs.lost_gpus[row]))
        self._cap[row] = own if own >= job.min else 0
        self._refused[row] = (reason, evidence)
        if own > job.min and resolved.queue in self._snapshot.cluster_queues and row not in self._snapshot.still:
            workload = self._state.admitted[resolved.queue][row]
            self._state.release(workload)
            usage = self._snapshot.requests.usage(job, workload.flavors, own)
            self._state.book(workload, usage, workload.since)
            self._snapshot.still[row] = own

    def _refuse(self, row: int, reason: Reason, evidence: Evidence = ()) -> None:
        self._cap[row] = 0
        self._refused[row] = (reason, evidence)

    def _refuse_the_rest(self, refusals: Mapping[Hashable, Refusal]) -> None:
        """Notes for each other job that got nothing why."""
        found: list[list[int]] = []
        for name, cq in self._snapshot.cluster_queues.items():
            number = self._number_of[name]
            new = self._workloads.new[name]
            rows = [row for row in cq.waiting if row not in new]
            if rows:
                found.append(rows)
                self._contested.add(number)
        waiting = list(chain.from_iterable(found))
        self._cap[waiting] = 0
        delaying, told, words = self._reservations.delaying, self._nominal_quota.told, ReasonTexts()
        for row in waiting:
            if row in self._workloads.without:
                continue
            if row in delaying:
                self._refused[row] = words.of(delaying[row], kept=True)
            else:
                self._refused[row] = words.of(told.get(row) or refusals.get(row))

    def _preempt(self, target: PreemptionTarget, by: Workload) -> None:
        workload = target.workload
        if self._workloads.new[workload.queue.name].pop(workload.row, None) is not None:
            # A job that got quota a moment ago had not started yet: it waits on. If it were looked at again
            # in this cycle, the two could go on preempting each other.
            self._cap[workload.row] = 0
            self._refused[workload.row] = (Reason.BEHIND_ANOTHER, ())
            return
        self._evict(workload, _EVICTED[target.reason])

    def _evict(self, workload: Workload, reason: Reason) -> None:
        """A job has to give all its GPUs up. It is not looked at again in this cycle."""
        row = workload.row
        self._contested.add(self._number_of[workload.queue.name])
        self._evicted[row] = reason
        self._refuse(row, reason, (("before", int(self._world.jobs.held[row])),))

    def _resizable(self, name: str) -> dict[int, Flavors]:
        """Those of a queue that have quota and may have another size."""
        still, preempted = self._snapshot.still, self._evicted
        running = self._snapshot.cluster_queues[name].running.items()
        found = {row: own for row, (own, _) in running if row not in still and row not in preempted}
        return found | self._workloads.new[name]

    def _results(self) -> dict[int, AdmissionResult]:
        fingerprints, place = self._fingerprints, self._fingerprints.place.tolist()
        found = {
            number: AdmissionResult(self._cap[fingerprints.rows[number]], [], [], {}, [], {}, number in self._contested)
            for number in self.trees
        }
        numbers = fingerprints.tree_of.tolist()
        for row, why in self._refused.items():
            own = found[numbers[row]]
            own.refused.append(place[row])
            own.reasons.append(why)
        for row, reason in self._evicted.items():
            found[numbers[row]].preempted[place[row]] = reason
        places = [place[row] for new in self._workloads.new.values() for row in new]
        end = 0
        for name, new in self._workloads.new.items():
            own = found[self._number_of[name]]
            if new:
                start, end = end, end + len(new)
                requests = list(map(self._snapshot.request_of.__getitem__, new))
                own.new[name] = Admissions(places[start:end], list(new.values()), requests)
            running = self._snapshot.cluster_queues[name].running.items()
            own.admitted.extend((place[row], flavors) for row, (flavors, _) in running)
        return found


@dataclass(frozen=True, slots=True)
class QuotaAdmission:
    """Gives out quota by Kueue's rules, with elasticity."""

    patience_s: float = 600.0  # who has waited so long is not overtaken any more by jobs that would delay it
    _cache: AdmissionCache = field(default_factory=AdmissionCache, init=False, repr=False, compare=False)
    """What was worked out before and still holds: it makes answers faster and changes none."""

    def admit(self, world: World, now_s: float, without: Set[int] = NO_ROWS) -> Admitted:
        if not world.quota:
            return Admitted()
        return _Admission(world, now_s, without, self.patience_s, self._cache).admit()


class _Admission:
    """One admission of all jobs: cycles where something has changed, and cached results elsewhere."""

    def __init__(self, world: World, now_s: float, without: Set[int], patience_s: float, cache: AdmissionCache) -> None:
        self._world, self._now_s = world, now_s
        self._cache, self._tree = cache, cache.empty_tree(world.effective_quota)
        cache.check_nodes(world)
        resolved_queues = resolve_queues(world, cache.resolved_queues)
        self._fingerprints = Fingerprints(world, now_s, resolved_queues, cache.number_of, without, patience_s)
        self._rows = {tree: rows.tolist() for tree, rows in self._fingerprints.rows.items()}
        self._results: dict[int, AdmissionResult] = {}  # by tree
        self._cycles: list[SchedulingCycle] = []

    def admit(self) -> Admitted:
        changed = self._recall()
        self._look_at(changed)
        served = self._served()
        flavors: dict[int, Flavors] = {}
        for rows, new, _ in served:
            flavors.update(zip(rows, new.flavors, strict=True))
        wishes = self._wishes(flavors)
        allowed = self._world.jobs.max.copy()
        for tree, results in self._results.items():
            allowed[self._fingerprints.rows[tree]] = results.cap
        gpu_type = self._types(allowed)
        # What could not be placed even if it were alone is no reason to keep quota from others.
        cap, _ = within_reach(self._world, allowed, gpu_type, wishes)
        assert cap is not None
        # Where nodes limit jobs otherwise than before, growing workloads have to be looked at again.
        self._look_at([tree for tree in self._fingerprints.rows if not self._grew_from(cap, tree)])
        for one in self._cycles:
            one.grow(cap, self._results)
        self._remember()
        return Admitted(
            cap=cap,
            refused=self._refused(),
            gpu_type=gpu_type,
            budgets=self._budgets(),
            wishes=wishes,
            flavors=flavors,
            losers=self._evicted(),
            # Others of their tree lost some or wait.
            contested=frozenset(chain.from_iterable(rows for rows, _, contested in served if contested)),
        )

    def _recall(self) -> list[int]:
        """Finds the answers that still hold; returns the trees where something has changed."""
        fingerprints, entries = self._fingerprints, self._cache.entries
        for tree in fingerprints.rows:
            if tree in entries and entries[tree].holds(fingerprints, tree):
                self._results[tree] = entries[tree].result
        return [tree for tree in fingerprints.rows if tree not in self._results]

    def _look_at(self, trees: list[int]) -> None:
        """Gives out quota in these trees."""
        if trees:
            one = SchedulingCycle(self._world, self._now_s, trees, self._fingerprints, self._tree, self._cache)
            self._results.update(one.serve())
            self._cycles.append(one)

    def _grew_from(self, cap: IntArray, tree: int) -> bool:
        """Whether it is known what the jobs of a tree grow to, or will be."""
        before = self._results[tree].grown_from
        return before is None or np.array_equal(before, cap[self._fingerprints.rows[tree]])

    def _remember(self) -> None:
        cache = self._cache
        fresh = {tree for one in self._cycles for tree in one.trees}
        cache.entries = {
            tree: entries
            for tree, entries in cache.entries.items()
            if tree in self._fingerprints.rows and tree not in fresh
        }
        for one in self._cycles:
            cache.entries.update(one.as_cache_entries(self._results))

    def _served(self) -> list[tuple[list[int], Admissions, bool]]:
        """The workloads that get quota, queue by queue: their rows, what they get, and whether that is contested."""
        found: list[tuple[list[int], Admissions, bool]] = []
        for name, tree in self._cache.number_of.items():
            results = self._results.get(tree)
            if results is not None and name in results.new:
                new = results.new[name]
                found.append(([*map(self._rows[tree].__getitem__, new.places)], new, results.contested))
        return found

    def _wishes(self, new: Mapping[int, Flavors]) -> dict[int, NodeRequirements]:
        """What those want of nodes whose flavors are good for some only."""
        jobs, found = self._world.jobs.jobs, dict[int, NodeRequirements]()
        flavors_of = self._world.effective_quota.flavors
        choosy = {flavor.name for flavor in flavors_of if flavor.node_labels or flavor.tolerations}
        if not choosy:
            return found
        admitted_before = {
            self._rows[tree][place]: flavors
            for tree, results in self._results.items()
            for place, flavors in results.admitted
        }
        requests = QuotaRequests(self._world, self._tree)
        for row, flavors in (admitted_before | dict(new)).items():
            if any(name in choosy for _, name in flavors):
                wishes = requests.where(jobs[row], flavors)
                if wishes is not None:
                    found[row] = wishes
        return found

    def _types(self, cap: IntArray) -> IntArray | None:
        """The GPU type of each row, where there is a choice."""
        world = self._world
        if len(world.nodes.types) == 1 and not world.jobs.picky:
            return None
        possible: dict[int, Set[int]] = {}
        for tree, results in self._results.items():
            for new in results.new.values():
                for place, flavors, request in zip(*new, strict=True):
                    accepted = [request.kinds[flavor] for _, flavor in flavors if flavor in request.kinds]
                    own = frozenset.intersection(*accepted) if accepted else frozenset()
                    possible[self._rows[tree][place]] = own
        return assign_types(world, world.capacity(), possible, set(np.flatnonzero(cap == 0).tolist()))

    def _refused(self) -> dict[int, tuple[Reason, Evidence]]:
        found: dict[int, tuple[Reason, Evidence]] = {}
        quota = self._world.effective_quota
        default = self._cache.number_of[DEFAULT_QUEUE] if rest_of(quota) else None
        for tree, results in self._results.items():
            rows = map(self._rows[tree].__getitem__, results.refused)
            reasons = results.reasons
            if tree == default:
                reasons = [about_rest(quota, reason, evidence) for reason, evidence in reasons]
            found.update(zip(rows, reasons, strict=True))
        return found

    def _budgets(self) -> tuple[Budget, ...]:
        found: list[Budget] = []
        for name, tree in self._cache.number_of.items():
            if tree in self._results:
                rows = self._fingerprints.rows[tree]
                for places, gpus, beside in self._results[tree].budgets.get(name, ()):
                    found.append(Budget(rows[places], gpus, beside))
        return tuple(found)

    def _evicted(self) -> dict[int, Reason]:
        return {
            self._rows[tree][place]: reason
            for tree, results in self._results.items()
            for place, reason in results.preempted.items()
        }
