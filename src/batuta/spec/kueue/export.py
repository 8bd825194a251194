"""Writes quota as Kueue's objects (v1beta2), which `read_quota_objects` reads as the same quota."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal
from typing import Any, TypeAlias

from batuta.core import quota as model
from batuta.core.quota import ClusterQueue, LocalQueue, Quota
from batuta.spec.kueue.kinds import STRATEGIES
from batuta.spec.kueue.objects import CONFIG_GROUP, CONFIGURATION, GROUP, queue_annotations
from batuta.spec.quantity import show_milli

Plain: TypeAlias = dict[str, Any]
VERSION = "v1beta2"
_BYTES = ("memory", "ephemeral-storage", "storage")


def quota_objects(quota: Quota) -> list[Plain]:
    """All objects but queues that leave, in an order in which nothing is named before it is there."""
    queues = [one for one in quota.cluster_queues if one.name not in quota.leaving]
    local_queues = [one for one in quota.local_queues if one.cluster_queue not in quota.leaving]
    found: list[Plain] = []
    if quota.fair_sharing:
        fair = {"preemptionStrategies": list(STRATEGIES)}
        found.append({"apiVersion": f"{CONFIG_GROUP}/{VERSION}", "kind": CONFIGURATION, "fairSharing": fair})
    found += [_object("ResourceFlavor", one.name, spec=_flavor(one)) for one in quota.flavors]
    found += [_object("Cohort", one.name, spec=_cohort(one)) for one in quota.cohorts]
    found += [_queue_object("ClusterQueue", one, "", _cluster_queue(one)) for one in queues]
    found += [_queue_object("LocalQueue", one, one.namespace, _local_queue(one)) for one in local_queues]
    for one in quota.priority_classes:
        said = {"description": one.description} if one.description else {}
        found.append(_object("WorkloadPriorityClass", one.name, value=one.value, **said))
    return found


def _queue_object(kind: str, queue: ClusterQueue | LocalQueue, namespace: str, spec: Plain) -> Plain:
    made = _object(kind, queue.name, namespace, spec=spec)
    if said := queue_annotations(queue):
        made["metadata"]["annotations"] = said
    return made


def _object(kind: str, name: str, namespace: str = "", **rest: Any) -> Plain:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata} | rest


def _flavor(flavor: model.Flavor) -> Plain:
    taints = [_said(**asdict(taint)) for taint in flavor.node_taints]
    tolerations = [_said(**asdict(one)) for one in flavor.tolerations]
    return _said(nodeLabels=dict(flavor.node_labels), nodeTaints=taints, tolerations=tolerations)


def _cohort(cohort: model.Cohort) -> Plain:
    groups = [_group(group) for group in cohort.groups]
    return _said(parentName=cohort.parent, resourceGroups=groups, fairSharing=_fair(cohort.weight))


def _local_queue(queue: LocalQueue) -> Plain:
    return {"clusterQueue": queue.cluster_queue, "stopPolicy": queue.stop.value}


def _cluster_queue(queue: ClusterQueue) -> Plain:
    spec = _said(cohortName=queue.cohort, resourceGroups=[_group(group) for group in queue.groups])
    spec["queueingStrategy"] = queue.strategy.value
    if queue.namespaces is not None:
        spec["namespaceSelector"] = _selector(queue.namespaces)
    spec["flavorFungibility"] = _fungibility(queue.fungibility)
    spec["preemption"] = _preemption(queue.preemption)
    spec["stopPolicy"] = queue.stop.value
    return spec | _said(fairSharing=_fair(queue.weight))


def _fair(weight: float) -> Plain:
    """The weight, unless it is what all have."""
    # The shortest digits that mean this number, never with an exponent.
    return {} if weight == 1 else {"weight": format(Decimal(repr(weight)).normalize(), "f")}


def _fungibility(rules: model.Fungibility) -> Plain:
    found = {"whenCanBorrow": rules.when_can_borrow.value, "whenCanPreempt": rules.when_can_preempt.value}
    if rules.when_can_borrow is rules.when_can_preempt is model.Search.TRY_NEXT_FLAVOR:
        found["preference"] = rules.preference.value
    return found


def _preemption(rules: model.Preemption) -> Plain:
    borrow: Plain = {"policy": "LowerPriority" if rules.while_borrowing else "Never"}
    if rules.max_priority is not None:
        borrow["maxPriorityThreshold"] = rules.max_priority
    within, reclaim = rules.within.value, rules.reclaim.value
    return {"withinClusterQueue": within, "reclaimWithinCohort": reclaim, "borrowWithinCohort": borrow}


def _selector(selector: model.Selector) -> Plain:
    terms = [_said(key=term.key, operator=term.operator, values=list(term.values)) for term in selector.expressions]
    return _said(matchLabels=dict(selector.labels), matchExpressions=terms)


def _group(group: model.ResourceGroup) -> Plain:
    flavors = []
    for flavor in group.flavors:
        quotas = [_quota(*pair) for pair in zip(group.resources, flavor.limits, strict=True)]
        flavors.append({"name": flavor.flavor, "resources": quotas})
    return {"coveredResources": list(group.resources), "flavors": flavors}


def _quota(resource: str, limits: model.Limits) -> Plain:
    amounts = {"nominalQuota": limits.nominal, "borrowingLimit": limits.borrowing, "lendingLimit": limits.lending}
    is_bytes = resource in _BYTES or resource.startswith("hugepages-")
    return {"name": resource} | {
        key: show_milli(amount, is_bytes=is_bytes) for key, amount in amounts.items() if amount is not None
    }


def _said(**values: Any) -> Plain:
    return {key: value for key, value in values.items() if value not in ("", [], {}, None)}
