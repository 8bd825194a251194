"""What pods say about other pods: affinity, anti-affinity and spread, as frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batuta.backends.kube import objects
from batuta.backends.kube.binder.selector import NOTHING, Requirement, Selector, selector_of


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


def spreads(
    found: Iterable[objects.TopologySpread], namespace: str, labels: Mapping[str, str]
) -> tuple[Spread, ...]:
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
