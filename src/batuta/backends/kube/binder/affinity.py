"""Pod affinity and spread: selectors and terms as frozen values, and counts of matching pods per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from batuta.backends.kube import objects
from batuta.backends.kube.binder.node_table import Ints, padded
from batuta.backends.kube.bounded_text import read_signed

_MOST_FILTERS: Final = 512


class Requirement(NamedTuple):
    """One condition on one label. An unknown operator matches nothing."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.matches_value(labels.get(self.key))

    def matches_value(self, value: str | None) -> bool:
        """`value` is None where the label is missing."""
        if self.operator in ("In", "NotIn"):
            return (value in self.values) is (self.operator == "In")
        if self.operator in ("Exists", "DoesNotExist"):
            return (value is not None) is (self.operator == "Exists")
        if self.operator not in ("Gt", "Lt") or len(self.values) != 1:
            return False
        number, bound = read_signed(value), read_signed(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.operator == "Gt" else number < bound


def requirements(
    expressions: Iterable[objects.Expression], labels: Mapping[str, str] | None = None
) -> tuple[Requirement, ...]:
    """Conditions that hold together, in one order, however they were written."""
    exact = [Requirement(key, "In", (value,)) for key, value in (labels or {}).items()]
    listed = [Requirement(one.key, one.operator, tuple(sorted(one.values))) for one in expressions]
    return tuple(sorted([*exact, *listed]))


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions on an object's labels; `nothing` matches no object, and no conditions match every one."""

    conditions: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.nothing and all(one.matches(labels) for one in self.conditions)


NOTHING: Final = Selector(nothing=True)


def selector_of(found: objects.LabelSelector | None) -> Selector:
    """A selector that is absent matches nothing; an empty one, everything."""
    if found is None:
        return NOTHING
    return Selector(requirements(found.match_expressions, found.match_labels))


class PodTerm(NamedTuple):
    """Other pods, and the node label whose value says how near they are."""

    topology_key: str
    namespaces: frozenset[str]
    namespace_selector: Selector
    selector: Selector

    def matches(self, who: Identity) -> bool:
        in_reach = who.namespace in self.namespaces or self.namespace_selector.matches(who.namespace_labels)
        return in_reach and self.selector.matches(who.labels)


@dataclass(frozen=True, slots=True)
class Identity:
    """How a pod looks to the terms of others."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]


class Spread(NamedTuple):
    """How evenly the pods that a selector finds shall lie over the values of a node label."""

    topology_key: str
    max_skew: int
    namespace: str
    selector: Selector
    counts_self: bool
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


def pod_terms(found: Iterable[objects.PodAffinityTerm], own_namespace: str) -> tuple[PodTerm, ...]:
    """Without a list of namespaces and a selector of them, a term means the pod's own namespace."""
    return tuple(
        PodTerm(
            one.topology_key,
            frozenset(one.namespaces or ([own_namespace] if one.namespace_selector is None else [])),
            selector_of(one.namespace_selector),
            selector_of(one.label_selector),
        )
        for one in found
    )


def spreads(found: Iterable[objects.TopologySpread], namespace: str, labels: Mapping[str, str]) -> tuple[Spread, ...]:
    """The constraints that must hold; those that are only wishes (`ScheduleAnyway`) are left out."""
    made = []
    for one in found:
        if one.when_unsatisfiable != "DoNotSchedule":
            continue
        selector = _narrowed(selector_of(one.label_selector), one.match_label_keys, labels)
        made.append(
            Spread(
                topology_key=one.topology_key,
                max_skew=one.max_skew,
                namespace=namespace,
                # A selector without conditions finds no pod here, though it does match the pod itself.
                selector=selector if selector.conditions else NOTHING,
                counts_self=selector.matches(labels),
                min_domains=one.min_domains,
                honors_affinity=one.node_affinity_policy != "Ignore",
                honors_taints=one.node_taints_policy == "Honor",
            )
        )
    return tuple(made)


def _narrowed(selector: Selector, keys: Iterable[str], labels: Mapping[str, str]) -> Selector:
    own = [Requirement(key, "In", (labels[key],)) for key in keys if key in labels]
    if selector.nothing or not own:
        return selector
    return Selector(tuple(sorted([*selector.conditions, *own])))


class TermsFilter(NamedTuple):
    """Pods that match all of some terms."""

    terms: tuple[PodTerm, ...]

    def counts(self, who: Identity, terminating: bool) -> bool:
        # A pod that terminates is still there, so still near.
        return all(term.matches(who) for term in self.terms)


class SpreadFilter(NamedTuple):
    """Pods of a namespace that a selector finds and that are not about to go."""

    namespace: str
    selector: Selector

    def counts(self, who: Identity, terminating: bool) -> bool:
        return not terminating and who.namespace == self.namespace and self.selector.matches(who.labels)


PodFilter: TypeAlias = TermsFilter | SpreadFilter


class CountedPod(NamedTuple):
    """A pod as the counts see it."""

    row: int
    who: Identity
    terminating: bool
    apart: tuple[PodTerm, ...]


class AffinityCounts:
    """How many pods of each node match each filter that a plugin asked for, and have each anti-affinity term."""

    def __init__(self) -> None:
        self.version = 0
        self.apart: dict[PodTerm, Ints] = {}
        """Anti-affinity terms of the pods that are there: how many pods of each node have them."""
        self._capacity = 0
        self._counts: dict[PodFilter, Ints] = {}

    @property
    def is_silent(self) -> bool:
        """Whether no counts are kept and no pod has anti-affinity terms."""
        return not self._counts and not self.apart

    def resize(self, capacity: int) -> None:
        self._capacity = capacity
        self.apart = {term: padded(column, (capacity,)) for term, column in self.apart.items()}
        self._counts = {pod_filter: padded(column, (capacity,)) for pod_filter, column in self._counts.items()}

    def count(self, pod_filter: PodFilter, counted_pods: Iterable[CountedPod]) -> Ints:
        """Pods per node that match the filter; `counted_pods` is read the first time."""
        column = self._counts.get(pod_filter)
        if column is None:
            if len(self._counts) >= _MOST_FILTERS:
                self.forget_filters()
            column = self._counts[pod_filter] = np.zeros(self._capacity, np.int64)
            for one in counted_pods:
                column[one.row] += pod_filter.counts(one.who, one.terminating)
        return column

    def take(self, counted: CountedPod, sign: int) -> None:
        """A pod comes (`sign` 1) or goes (-1)."""
        for pod_filter, column in self._counts.items():
            if pod_filter.counts(counted.who, counted.terminating):
                column[counted.row] += sign
                self.version += 1
        for term in counted.apart:
            if term not in self.apart:
                self.apart[term] = np.zeros(self._capacity, np.int64)
            holders = self.apart[term]
            holders[counted.row] += sign
            self.version += 1
            if not holders.any():
                del self.apart[term]

    def forget_filters(self) -> None:
        """Drops all counts of filters; they are counted again when a plugin asks."""
        self._counts.clear()
        self.version += 1
