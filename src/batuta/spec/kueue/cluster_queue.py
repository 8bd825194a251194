"""ClusterQueue: quota, and by which rules it is given out."""

from __future__ import annotations

from batuta.core.quota import (
    ClusterQueue,
    Expression,
    Fungibility,
    Preemption,
    Preference,
    Reclaim,
    Search,
    Selector,
    StopPolicy,
    Strategy,
    Within,
)
from batuta.spec.kueue.part import Part, check_label, read_text_value
from batuta.spec.kueue.resource_groups import read_groups

HIGHEST = 2**31 - 1
_LEAST_WEIGHT = 1e-9
_CHECKS = "jobs start without waiting for these checks"
_KNOWN = (
    *("resourceGroups", "queueingStrategy", "namespaceSelector", "flavorFungibility", "preemption"),
    *("stopPolicy", "fairSharing"),
)
_COHORT = ("cohort", "cohortName")
_UNUSED = {
    "admissionChecksStrategy": _CHECKS,
    "admissionScope": "what a queue used before does not change its turn",
    "concurrentAdmissionPolicy": "a job waits for one flavor at a time",
    "excludeResourcePrefixes": "every resource that a group covers is counted",
}
_UNUSED_BY_VERSION = {"v1beta1": {"admissionChecks": _CHECKS}, "v1beta2": {}}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def read_cluster_queue(top: Part, name: str, version: str) -> ClusterQueue:
    spec = top.part("spec", (*_KNOWN, *_COHORT), _UNUSED | _UNUSED_BY_VERSION[version])
    top.unused += spec.unused
    cohort = read_by_version(spec, version, _COHORT)
    return ClusterQueue(
        name,
        cohort,
        read_groups(spec, cohort, lends_at_most_nominal=True),
        spec.choice("queueingStrategy", Strategy, Strategy.BEST_EFFORT_FIFO),
        _preemption(spec),
        _fungibility(spec, version),
        _namespaces(spec),
        read_weight(spec),
        spec.choice("stopPolicy", StopPolicy, StopPolicy.NONE),
    )


def read_by_version(spec: Part, version: str, keys: tuple[str, str]) -> str:
    """A name whose key is another one since v1beta2."""
    older, newer = keys
    key, other = (newer, older) if version == "v1beta2" else (older, newer)
    if other in spec:
        spec.fault(other, f"unknown key {other} in {spec.path}", f"{version} calls it {key}")
    # What was meant is clear: what follows from it need not be told as well.
    return spec.name(key if key in spec else other)


def read_weight(spec: Part) -> float:
    """`fairSharing.weight`; 0 is allowed and means: behind all others."""
    fair = spec.part("fairSharing", ("weight",))
    weight = fair.quantity("weight")
    if weight is None:
        return 1.0
    if weight < 0 or 0 < weight <= _LEAST_WEIGHT:
        fault = "must not be negative" if weight < 0 else f"must be 0 or more than {_LEAST_WEIGHT:g}"
        fair.fault("weight", f"{fair.at('weight')} {fault}", "1 is what others have")
        return 1.0
    return float(weight)


def _preemption(spec: Part) -> Preemption:
    rules = spec.part("preemption", ("withinClusterQueue", "reclaimWithinCohort", "borrowWithinCohort"))
    borrow = rules.part("borrowWithinCohort", ("policy", "maxPriorityThreshold"))
    reclaim = rules.choice("reclaimWithinCohort", Reclaim, Reclaim.NEVER)
    while_borrowing = borrow.word("policy", ("Never", "LowerPriority"), "Never") == "LowerPriority"
    if while_borrowing and reclaim is Reclaim.NEVER:
        borrow.fault(
            "policy",
            f"{borrow.at('policy')} is LowerPriority while reclaimWithinCohort is Never",
            "set reclaimWithinCohort to LowerPriority or Any",
        )
    return Preemption(
        rules.choice("withinClusterQueue", Within, Within.NEVER),
        reclaim,
        while_borrowing,
        borrow.whole("maxPriorityThreshold", -HIGHEST - 1, HIGHEST),
    )


def _fungibility(spec: Part, version: str) -> Fungibility:
    newer = version != "v1beta1"
    known = ("whenCanBorrow", "whenCanPreempt", *(("preference",) if newer else ()))
    rules = spec.part("flavorFungibility", known)
    stop = Search.MAY_STOP_SEARCH
    found = Fungibility(
        rules.choice("whenCanBorrow", Search, stop, {} if newer else {"Borrow": stop}),
        rules.choice("whenCanPreempt", Search, Search.TRY_NEXT_FLAVOR, {} if newer else {"Preempt": stop}),
        rules.choice("preference", Preference, Preference.BORROWING_OVER_PREEMPTION),
    )
    if "preference" in rules and stop in (found.when_can_borrow, found.when_can_preempt):
        rules.fault(
            "preference",
            f"{rules.at('preference')} has a meaning only when all flavors are tried",
            "set whenCanBorrow and whenCanPreempt to TryNextFlavor",
        )
    return found


def _namespaces(spec: Part) -> Selector | None:
    """Absent is a selector of nothing, empty one of everything."""
    if "namespaceSelector" not in spec:
        return None
    selector = spec.part("namespaceSelector", ("matchLabels", "matchExpressions"))
    terms = []
    for part in selector.parts("matchExpressions", 64, ("key", "operator", "values")):
        key, operator = part.text("key"), part.word("operator", _OPERATORS, "")
        items = part.items("values", 256)
        values = tuple(read_text_value(part.reader, item, may_be_empty=True) for item in items)
        for item, value in zip(items, values, strict=True):
            check_label(part.reader, item, key or "key", value)
        if not key or "operator" not in part:
            part.fault(
                "key", f"{part.path} needs key and operator", f"an operator is {', '.join(_OPERATORS)}"
            )
        elif operator and bool(values) != (operator in ("In", "NotIn")):
            fix = "In and NotIn have values, Exists and DoesNotExist have none"
            part.fault("values", f"{part.at('values')} does not go with {operator}", fix)
        terms.append(Expression(key, operator, values))
    return Selector(selector.labels("matchLabels"), tuple(terms))
