"""Reads the fields of each kind: ClusterQueue, ResourceFlavor, LocalQueue, Cohort, WorkloadPriorityClass."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core import quota as model
from batuta.spec.kueue.object_reader import Item, Section, check_label, check_resource, read_text_value
from batuta.spec.quantity import shown

MOST_GROUPS, MOST_IN_GROUP, MOST_TOGETHER, MOST_CELLS = 16, 64, 256, 512
_GROUP = ("coveredResources", "flavors")
_FLAVOR = ("name", "resources")
_QUOTA = ("name", "nominalQuota", "borrowingLimit", "lendingLimit")
MAX_INT32 = 2**31 - 1
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
_LOCAL_UNUSED = {
    "fairSharing": "the local queues of a cluster queue are served in the order of their jobs",
    "wallTimePolicy": "the time that jobs run is not limited",
}
_PARENT = ("parent", "parentName")
STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
"""The strategies by which fair sharing preempts a job, in this order."""
MOST_PER_FLAVOR = 8
_UNUSED_FLAVOR_KEYS = {
    "topologyName": "where replicas stand close together is said by each task (gpu.topology)",
    "resourceWeights": "all resources weigh the same in fair sharing",
}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT = ("key", "value", "effect", "timeAdded")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")


def read_groups(spec: Section, parent: str, *, lends_at_most_nominal: bool) -> tuple[model.ResourceGroup, ...]:
    """The groups of a queue or cohort that is below `parent`; empty when it has no parent."""
    # Names that may stand once in all groups together.
    resources_seen, flavors_seen = set[str](), set[str]()
    found: list[model.ResourceGroup] = []
    for group in spec.sections("resourceGroups", MOST_GROUPS, _GROUP):
        resources = _resources(group, resources_seen)
        parts = list(group.sections("flavors", MOST_IN_GROUP, _FLAVOR))
        if not parts:
            group.fault("flavors", f"{group.path} needs flavors", "at least one")
        read = [_flavor(part, resources, parent, flavors_seen, lends_at_most_nominal) for part in parts]
        flavors = [flavor for flavor in read if flavor is not None]
        if len(flavors) * len(resources) > MOST_CELLS:
            group.fault("flavors", f"{group.path} has too many quotas", f"at most {MOST_CELLS} in a group")
        found.append(model.ResourceGroup(resources, tuple(flavors)))
    for what, count in (("flavors", len(flavors_seen)), ("resources", len(resources_seen))):
        if count > MOST_TOGETHER:
            spec.fault("resourceGroups", f"all groups together have {count} {what}", f"at most {MOST_TOGETHER}")
    return tuple(found)


def _resources(group: Section, seen: set[str]) -> tuple[str, ...]:
    names: list[str] = []
    items = group.items("coveredResources", MOST_IN_GROUP)
    if not items:
        group.fault("coveredResources", f"{group.path} needs coveredResources", 'as in ["nvidia.com/gpu"]')
    for item in items:
        name = read_text_value(group.reader, item)
        check_resource(group.reader, item, name)
        if name and name in seen:
            message = f"{item.path}: {shown(name)} is covered twice"
            group.reader.fault(item.node, message, "name each resource once in all groups")
        elif name:
            seen.add(name)
            names.append(name)
    return tuple(names)


def _flavor(
    part: Section, resources: tuple[str, ...], parent: str, seen: set[str], lends_at_most_nominal: bool
) -> model.FlavorQuota | None:
    before = len(part.reader.problems)
    name = part.name("name")
    if part.require("name", "the name of a ResourceFlavor") and name and name in seen:
        part.fault("name", f"{part.path}: flavor {name} is named twice", "name each flavor once in all groups")
    seen.add(name)
    quotas = list(part.sections("resources", MOST_IN_GROUP, _QUOTA))
    names = tuple(quota.text("name") for quota in quotas)
    if names != resources and len(part.reader.problems) == before:
        has, wanted = (", ".join(some) or "nothing" for some in (names, resources))
        message = f"{part.at('resources')} has {has} where the group covers {wanted}"
        part.fault("resources", message, "the same resources in the same order as coveredResources")
    limits = tuple(_limits(quota, parent, lends_at_most_nominal) for quota in quotas)
    return model.FlavorQuota(name, limits) if len(part.reader.problems) == before else None


def _limits(quota: Section, parent: str, lends_at_most_nominal: bool) -> model.Limits:
    quota.require("nominalQuota", fix="0 for none of its own")
    nominal = quota.milli("nominalQuota")
    for key in ("borrowingLimit", "lendingLimit"):
        if key in quota and not parent:
            below = "cohort" if lends_at_most_nominal else "parent"
            quota.fault(key, f"{quota.at(key)} has no meaning without a {below}", f"drop it, or name a {below}")
    lending = quota.milli("lendingLimit")
    too_much = lending is not None and nominal is not None and lending > nominal
    if too_much and parent and lends_at_most_nominal:
        message = f"{quota.at('lendingLimit')} is more than nominalQuota"
        quota.fault("lendingLimit", message, "lend at most what there is")
    return model.Limits(nominal or 0, quota.milli("borrowingLimit"), lending)


def read_cluster_queue(top: Section, name: str, version: str) -> model.ClusterQueue:
    spec = top.section("spec", (*_KNOWN, *_COHORT), _UNUSED | _UNUSED_BY_VERSION[version])
    top.unused += spec.unused
    cohort = read_by_version(spec, version, _COHORT)
    return model.ClusterQueue(
        name,
        cohort,
        read_groups(spec, cohort, lends_at_most_nominal=True),
        spec.choice("queueingStrategy", model.Strategy, model.Strategy.BEST_EFFORT_FIFO),
        _preemption(spec),
        _fungibility(spec, version),
        _namespaces(spec),
        read_weight(spec),
        spec.choice("stopPolicy", model.StopPolicy, model.StopPolicy.NONE),
    )


def read_by_version(spec: Section, version: str, keys: tuple[str, str]) -> str:
    """Return a name whose key changed in v1beta2."""
    older, newer = keys
    key, other = (newer, older) if version == "v1beta2" else (older, newer)
    if other in spec:
        spec.fault(other, f"unknown key {other} in {spec.path}", f"{version} calls it {key}")
    # The intent is clear: do not report what follows from the wrong key.
    return spec.name(key if key in spec else other)


def read_weight(spec: Section) -> float:
    """`fairSharing.weight`; 0 is allowed and means: behind all others."""
    fair = spec.section("fairSharing", ("weight",))
    weight = fair.quantity("weight")
    if weight is None:
        return 1.0
    if weight < 0 or 0 < weight <= _LEAST_WEIGHT:
        fault = "must not be negative" if weight < 0 else f"must be 0 or more than {_LEAST_WEIGHT:g}"
        fair.fault("weight", f"{fair.at('weight')} {fault}", "1 is what others have")
        return 1.0
    return float(weight)


def _preemption(spec: Section) -> model.Preemption:
    rules = spec.section("preemption", ("withinClusterQueue", "reclaimWithinCohort", "borrowWithinCohort"))
    borrow = rules.section("borrowWithinCohort", ("policy", "maxPriorityThreshold"))
    reclaim = rules.choice("reclaimWithinCohort", model.Reclaim, model.Reclaim.NEVER)
    while_borrowing = borrow.word("policy", ("Never", "LowerPriority"), "Never") == "LowerPriority"
    if while_borrowing and reclaim is model.Reclaim.NEVER:
        message = f"{borrow.at('policy')} is LowerPriority while reclaimWithinCohort is Never"
        borrow.fault("policy", message, "set reclaimWithinCohort to LowerPriority or Any")
    within = rules.choice("withinClusterQueue", model.Within, model.Within.NEVER)
    threshold = borrow.whole("maxPriorityThreshold", -MAX_INT32 - 1, MAX_INT32)
    return model.Preemption(within, reclaim, while_borrowing, threshold)


def _fungibility(spec: Section, version: str) -> model.Fungibility:
    newer = version != "v1beta1"
    known = ("whenCanBorrow", "whenCanPreempt", *(("preference",) if newer else ()))
    rules = spec.section("flavorFungibility", known)
    stop = model.Search.MAY_STOP_SEARCH
    found = model.Fungibility(
        rules.choice("whenCanBorrow", model.Search, stop, {} if newer else {"Borrow": stop}),
        rules.choice("whenCanPreempt", model.Search, model.Search.TRY_NEXT_FLAVOR, {} if newer else {"Preempt": stop}),
        rules.choice("preference", model.Preference, model.Preference.BORROWING_OVER_PREEMPTION),
    )
    if "preference" in rules and stop in (found.when_can_borrow, found.when_can_preempt):
        message = f"{rules.at('preference')} has a meaning only when all flavors are tried"
        rules.fault("preference", message, "set whenCanBorrow and whenCanPreempt to TryNextFlavor")
    return found


def _namespaces(spec: Section) -> model.Selector | None:
    """Absent is a selector of nothing, empty one of everything."""
    if "namespaceSelector" not in spec:
        return None
    selector = spec.section("namespaceSelector", ("matchLabels", "matchExpressions"))
    terms = []
    for part in selector.sections("matchExpressions", 64, ("key", "operator", "values")):
        key, operator = part.text("key"), part.word("operator", _OPERATORS, "")
        items = part.items("values", 256)
        values = tuple(read_text_value(part.reader, item, may_be_empty=True) for item in items)
        for item, value in zip(items, values, strict=True):
            check_label(part.reader, item, key or "key", value)
        if not key or "operator" not in part:
            part.fault("key", f"{part.path} needs key and operator", f"an operator is {', '.join(_OPERATORS)}")
        elif operator and bool(values) != (operator in ("In", "NotIn")):
            fix = "In and NotIn have values, Exists and DoesNotExist have none"
            part.fault("values", f"{part.at('values')} does not go with {operator}", fix)
        terms.append(model.Expression(key, operator, values))
    return model.Selector(selector.labels("matchLabels"), tuple(terms))


def read_local_queue(top: Section, name: str, namespace: str) -> model.LocalQueue:
    spec = top.section("spec", ("clusterQueue", "stopPolicy"), _LOCAL_UNUSED)
    top.unused += spec.unused
    queue = spec.name("clusterQueue")
    if "clusterQueue" not in spec:
        (spec if spec.node is not None else top).fault("spec", "a LocalQueue needs spec.clusterQueue")
    return model.LocalQueue(name, queue, namespace, spec.choice("stopPolicy", model.StopPolicy, model.StopPolicy.NONE))


def read_cohort(top: Section, name: str, version: str) -> model.Cohort:
    spec = top.section("spec", (*_PARENT, "resourceGroups", "fairSharing"))
    parent = read_by_version(spec, version, _PARENT)
    groups = read_groups(spec, parent, lends_at_most_nominal=False)
    return model.Cohort(name, parent, groups, read_weight(spec))


def read_priority_class(top: Section, name: str) -> model.PriorityClass:
    value = top.whole("value", -MAX_INT32 - 1, MAX_INT32)
    if "value" not in top:
        top.fault("value", "a WorkloadPriorityClass needs a value", "a whole number; higher goes first")
    return model.PriorityClass(name, value or 0, top.text("description"))


def read_fair_sharing(top: Section) -> bool:
    """Whether the Configuration turns fair sharing on: by `enable`, or since v1beta2 by being there."""
    if "fairSharing" not in top:
        return False
    fair = top.section("fairSharing", ("enable", "preemptionStrategies"))
    key = "preemptionStrategies"
    found = tuple(read_text_value(top.reader, item) for item in fair.items(key, 8))
    if found and found != STRATEGIES:
        fix = f"Batuta uses {' and then '.join(STRATEGIES)}: drop the key"
        fair.fault(key, f"{fair.at(key)} is {', '.join(found)}", fix)
    return fair.flag("enable", default=top.text("apiVersion").endswith("/v1beta2"))


def read_flavor(top: Section, name: str) -> model.Flavor:
    spec = top.section("spec", ("nodeLabels", "nodeTaints", "tolerations"), _UNUSED_FLAVOR_KEYS)
    top.unused += spec.unused
    labels, taints = spec.labels("nodeLabels", MOST_PER_FLAVOR), tuple(_taints(spec))
    return model.Flavor(name, labels, taints, read_tolerations(spec, "tolerations", MOST_PER_FLAVOR))


def _taints(spec: Section) -> Iterable[model.Taint]:
    seen: set[tuple[str, str]] = set()
    for part in spec.sections("nodeTaints", MOST_PER_FLAVOR, _TAINT):
        taint = model.Taint(part.text("key"), part.text("value"), part.word("effect", _EFFECTS, "NoSchedule"))
        if not taint.key:
            part.fault("key", f"{part.path} needs a key")
        elif part.node is not None:
            check_label(part.reader, Item(part.node, part.path), taint.key, taint.value)
        part.require("effect", "an effect", f"one of {', '.join(_EFFECTS)}")
        if (taint.key, taint.effect) in seen:
            part.fault("key", f"{part.path}: {taint.key} with {taint.effect} appears twice")
        seen.add((taint.key, taint.effect))
        yield taint


def read_tolerations(spec: Section, key: str, most: int = 64) -> tuple[model.Toleration, ...]:
    """The tolerations of a list, by the rules of pods."""
    return tuple(_toleration(part) for part in spec.sections(key, most, _TOLERATION))


def _toleration(part: Section) -> model.Toleration:
    operator, effect = part.word("operator", ("Equal", "Exists"), "Equal"), part.word("effect", _EFFECTS, "")
    found = model.Toleration(part.text("key"), operator, part.text("value"), effect)
    if not found.key and found.operator != "Exists":
        part.fault("key", f"{part.path} has no key", "with operator Exists it tolerates everything")
    if found.operator == "Exists" and found.value:
        part.fault("value", f"{part.path}: Exists goes without a value", "drop the value, or say Equal")
    if "tolerationSeconds" in part and found.effect != "NoExecute":
        part.fault("tolerationSeconds", f"{part.path}: tolerationSeconds goes with the effect NoExecute only")
    return found
