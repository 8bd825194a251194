"""Which flavor a workload gets its quota in.

Resources of one group come from one flavor, and flavors are tried in the order in which the queue names them:
one that fits without borrowing ends the search, and what else ends it is the queue's `fungibility`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from batuta.core.quota import (
    MILLI,
    ClusterQueue,
    FlavorResource,
    Fungibility,
    Preference,
    Quota,
    Reclaim,
    ResourceGroup,
    Search,
)
from batuta.quota.reasons import Refusal, Why
from batuta.quota.tree import Amounts, Node, QuotaTree
from batuta.quota.workload import PODS, FlavorChoice, PodSet, Workload


class Mode(IntEnum):
    """How well a flavor would do, from not at all to at once."""

    NO_FIT = 0
    NO_CANDIDATES = 1  # it would fit if others were gone, but none of them may be preempted
    PREEMPT = 2
    RECLAIM = 3  # as PREEMPT, and all who have to go borrow from this queue
    FIT = 4


class PreemptionPossibility(NamedTuple):
    """What preempting others would come to."""

    mode: Mode
    level: int


PreemptionOracle = Callable[[Workload, Amounts], PreemptionPossibility]
"""Asks whom a workload could preempt to get so much more of these flavor resources."""


@dataclass(slots=True)
class Assignment:
    """Where a workload would get its quota."""

    mode: Mode = Mode.FIT
    level: int = 0  # how far up the tree it borrows; 0 for not at all
    usage: Amounts = field(default_factory=dict)
    short: dict[int, int] = field(default_factory=dict)  # the flavor resources in which others would have to go
    flavors: dict[str, str] = field(default_factory=dict)
    counts: tuple[int, ...] = ()
    refusal: Refusal | None = None
    tried: list[dict[str, int]] = field(default_factory=list)
    """By pod set and resource: the flavor at which the search ended early, -1 if all were looked at."""

    @property
    def has_more(self) -> bool:
        """Whether there are flavors that were not looked at, because one before them seemed to do."""
        return any(at >= 0 for own in self.tried for at in own.values())


class _Try(NamedTuple):
    flavor: str
    mode: Mode
    level: int
    short: tuple[int, ...]
    rank: PreemptionPossibility  # what the resource comes to that does worst here, by what the queue prefers


class FlavorAssigner:
    """Finds flavors for the workloads of all queues, as things stand in the tree."""

    def __init__(self, quota: Quota, tree: QuotaTree, oracle: PreemptionOracle) -> None:
        self._quota, self._tree, self._oracle = quota, tree, oracle
        self._groups: dict[tuple[str, str], ResourceGroup] = {
            (queue.name, resource): group
            for queue in quota.cluster_queues
            for group in queue.groups
            for resource in group.resources
        }
        self._admits: dict[tuple[object, ...], bool] = {}

    def assign(self, workload: Workload, counts: tuple[int, ...] | None = None) -> Assignment:
        """The flavors for so many replicas of each pod set; all of them by default."""
        queue = self._quota.queue_of[workload.queue.name]
        if workload.flavor_choice is not None and not workload.resumes:
            return self._assign_choice(workload, queue, workload.flavor_choice)
        result = Assignment(counts=counts or tuple(one.count for one in workload.pod_sets))
        for pod_set, count in zip(workload.pod_sets, result.counts, strict=True):
            result.tried.append({})
            self._assign_pod_set(result, workload, queue, pod_set, count)
            if result.mode is Mode.NO_FIT:
                result.usage, result.tried[-1] = {}, {}
                break
        return result

    def _assign_choice(self, workload: Workload, queue: ClusterQueue, flavor_choice: FlavorChoice) -> Assignment:
        """What a search would come to for a workload that has no choice, without the search."""
        resource, flavor, fr, amount = flavor_choice
        mode, level = found = self._fit(workload, queue, fr, amount)
        if mode is Mode.FIT:
            return Assignment(mode, level, {fr: amount}, {}, {resource: flavor}, (1,))
        refusal = self.why(workload.queue, fr, amount)
        if mode is Mode.NO_FIT:
            return Assignment(mode, counts=(1,), refusal=refusal, tried=[{}])
        ended = -1
        if _ends_search(found, queue.fungibility):
            names = [one.flavor for one in self._groups[queue.name, resource].flavors]
            ended = names.index(flavor) if flavor != names[-1] else -1
        usage, tried = {fr: amount}, [{resource: ended}]
        return Assignment(mode, level, usage, dict(usage), {resource: flavor}, (1,), refusal, tried)

    def _assign_pod_set(
        self, result: Assignment, workload: Workload, queue: ClusterQueue, pods: PodSet, count: int
    ) -> None:
        asked = {resource: amount * count for resource, amount in pods.requests}
        if (queue.name, PODS) in self._groups:
            asked.setdefault(PODS, MILLI * count)
        done: set[str] = set()
        for resource in sorted(asked):
            if resource in done:
                continue
            group = self._groups.get((queue.name, resource))
            if group is None:
                if asked[resource]:
                    text = f"queue {queue.name} has no quota for {resource}"
                    result.mode, result.refusal = Mode.NO_FIT, Refusal(Why.NO_MATCHING_FLAVOR, text)
                    return
                continue
            wanted = {name: asked[name] for name in group.resources if name in asked}
            done.update(wanted)
            best = self._search(result, workload, queue, group, pods, wanted)
            if best is None:
                result.mode = Mode.NO_FIT
                return
            result.mode, result.level = min(result.mode, best.mode), max(result.level, best.level)
            for name, amount in wanted.items():
                fr = self._tree.fr_number[FlavorResource(best.flavor, name)]
                result.usage[fr] = result.usage.get(fr, 0) + amount
                result.flavors[name] = best.flavor
            result.short.update((fr, result.usage[fr]) for fr in best.short)

    def _search(
        self,
        result: Assignment,
        workload: Workload,
        queue: ClusterQueue,
        group: ResourceGroup,
        pods: PodSet,
        wanted: dict[str, int],
    ) -> _Try | None:
        """The best flavor of a group behind the one where the last search ended; None, with the reason in `result`."""
        best: _Try | None = None
        refusals: list[Refusal] = []
        number, ended = len(result.tried) - 1, -1
        before = workload.tried[number] if number < len(workload.tried) else {}
        start = before.get(next(iter(wanted)), -1) + 1
        for at, one in enumerate(group.flavors[start:], start):
            if not self._accepts(workload, pods, one.flavor):
                continue
            tried = self._try(result, workload, queue, one.flavor, wanted, refusals)
            if tried.mode is Mode.NO_FIT:
                continue
            if _ends_search(tried.rank, queue.fungibility):
                best, ended = tried, at
                break
            if best is None or _better(tried.rank, best.rank, queue.fungibility):
                best = tried
        if ended == len(group.flavors) - 1:
            ended = -1
        result.tried[number].update(dict.fromkeys(wanted, ended))
        if refusals and (best is None or best.mode is not Mode.FIT):
            # What waits for quota that others use says so, even where another flavor is too small for ever.
            result.refusal = min(refusals, key=lambda refusal: refusal.why is Why.EXCEEDS_MAX_QUOTA)
        elif best is None:
            text = f"no flavor of queue {queue.name} has the labels it wants or taints that it tolerates"
            result.refusal = Refusal(Why.NO_MATCHING_FLAVOR, text)
        return best

    def _try(
        self,
        result: Assignment,
        workload: Workload,
        queue: ClusterQueue,
        flavor: str,
        wanted: dict[str, int],
        refusals: list[Refusal],
    ) -> _Try:
        mode, level = Mode.FIT, 0
        rank = PreemptionPossibility(Mode.FIT, 0)
        short: list[int] = []
        for resource, amount in wanted.items():
            fr = self._tree.fr_number[FlavorResource(flavor, resource)]
            needs = result.usage.get(fr, 0) + amount
            one = self._fit(workload, queue, fr, needs)
            if one.mode is not Mode.FIT:
                refusals.append(self.why(workload.queue, fr, needs))
                short.append(fr)
            mode, level = min(mode, one.mode), max(level, one.level)
            if mode is Mode.NO_FIT:
                break
            if _better(rank, one, queue.fungibility):
                rank = one
        return _Try(flavor, mode, level, tuple(short), rank)

    def _fit(self, workload: Workload, queue: ClusterQueue, fr: int, needs: int) -> PreemptionPossibility:
        node = workload.queue
        if needs > node.most(fr):
            return PreemptionPossibility(Mode.NO_FIT, 0)
        level, may_reclaim = node.level(fr, needs)
        if needs <= max(0, node.left(fr)):
            return PreemptionPossibility(Mode.FIT, level)
        limits = node.limits.get(fr)
        nominal = limits.nominal if limits is not None else 0
        if needs <= nominal or may_reclaim or self._preempts_while_borrowing(queue):
            return self._oracle(workload, {fr: needs})
        return PreemptionPossibility(Mode.NO_FIT, level)

    def _preempts_while_borrowing(self, queue: ClusterQueue) -> bool:
        rules = queue.preemption
        return rules.while_borrowing or (self._quota.fair_sharing and rules.reclaim is not Reclaim.NEVER)

    def why(self, node: Node, fr: int, needs: int) -> Refusal:
        """What is short, in numbers."""
        limits, most = node.limits.get(fr), node.most(fr)
        nominal = limits.nominal if limits is not None else 0
        own = max(0, nominal - node.usage.get(fr, 0))
        more = max(0, node.left(fr) - own)
        why = Why.EXCEEDS_MAX_QUOTA if needs > most else Why.WAITING_FOR_QUOTA
        return Refusal(why, "", self._tree.frs[fr], needs, own, nominal, more, most)

    def _accepts(self, workload: Workload, pods: PodSet, name: str) -> bool:
        """Whether replicas may run on the nodes of a flavor. Labels that it does not name do not matter."""
        if workload.only is not None and name not in workload.only:
            return False
        asked = (pods.node_labels, pods.tolerations, name)
        known = self._admits.get(asked)
        if known is None:
            known = self._admits[asked] = self._look(pods, name)
        return known

    def _look(self, pods: PodSet, name: str) -> bool:
        flavor = self._quota.flavor_of.get(name)
        if flavor is None:
            return False
        tolerations = (*pods.tolerations, *flavor.tolerations)
        for taint in flavor.node_taints:
            if taint.keeps_out and not any(one.tolerates(taint) for one in tolerations):
                return False
        labels = dict(flavor.node_labels)
        return all(labels[key] == value for key, value in pods.node_labels if key in labels)


def _ends_search(tried: PreemptionPossibility, rules: Fungibility) -> bool:
    """Whether later flavors are not looked at."""
    if tried.mode is Mode.NO_CANDIDATES:
        return False
    if tried.mode is not Mode.FIT and rules.when_can_preempt is Search.TRY_NEXT_FLAVOR:
        return False
    return not tried.level or rules.when_can_borrow is Search.MAY_STOP_SEARCH


def _better(one: PreemptionPossibility, other: PreemptionPossibility, rules: Fungibility) -> bool:
    waits, other_waits = one.mode is Mode.NO_CANDIDATES, other.mode is Mode.NO_CANDIDATES
    if waits is not other_waits:
        # What cannot be had now does not keep a workload from what can, whatever the queue prefers.
        return other_waits
    if rules.preference is Preference.PREEMPTION_OVER_BORROWING:
        return (-one.level, one.mode) > (-other.level, other.mode)
    return (one.mode, -one.level) > (other.mode, -other.level)
