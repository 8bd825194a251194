"""LocalQueue, Cohort, WorkloadPriorityClass and Kueue's own Configuration."""

from __future__ import annotations

from batuta.core.quota import Cohort, LocalQueue, PriorityClass, StopPolicy
from batuta.spec.kueue.cluster_queue import HIGHEST, read_by_version, read_weight
from batuta.spec.kueue.part import Part, read_text_value
from batuta.spec.kueue.resource_groups import read_groups

_LOCAL_UNUSED = {
    "fairSharing": "the local queues of a cluster queue are served in the order of their jobs",
    "wallTimePolicy": "the time that jobs run is not limited",
}
_PARENT = ("parent", "parentName")
STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
"""What fair sharing heeds when it pushes a job aside, in this order."""


def read_local_queue(top: Part, name: str, namespace: str) -> LocalQueue:
    spec = top.part("spec", ("clusterQueue", "stopPolicy"), _LOCAL_UNUSED)
    top.unused += spec.unused
    queue = spec.name("clusterQueue")
    if "clusterQueue" not in spec:
        (spec if spec.node is not None else top).fault("spec", "a LocalQueue needs spec.clusterQueue")
    return LocalQueue(name, queue, namespace, spec.choice("stopPolicy", StopPolicy, StopPolicy.NONE))


def read_cohort(top: Part, name: str, version: str) -> Cohort:
    spec = top.part("spec", (*_PARENT, "resourceGroups", "fairSharing"))
    parent = read_by_version(spec, version, _PARENT)
    groups = read_groups(spec, parent, lends_at_most_nominal=False)
    return Cohort(name, parent, groups, read_weight(spec))


def read_priority_class(top: Part, name: str) -> PriorityClass:
    value = top.whole("value", -HIGHEST - 1, HIGHEST)
    if "value" not in top:
        top.fault("value", "a WorkloadPriorityClass needs a value", "a whole number; higher goes first")
    return PriorityClass(name, value or 0, top.text("description"))


def read_fair_sharing(top: Part) -> bool:
    """Whether the Configuration turns fair sharing on: by `enable`, or since v1beta2 by being there."""
    if "fairSharing" not in top:
        return False
    fair = top.part("fairSharing", ("enable", "preemptionStrategies"))
    items = fair.items("preemptionStrategies", 8)
    found = tuple(read_text_value(top.reader, item) for item in items)
    if found and found != STRATEGIES:
        fair.fault(
            "preemptionStrategies",
            f"{fair.at('preemptionStrategies')} is {', '.join(found)}",
            f"Batuta heeds {' and then '.join(STRATEGIES)}: drop the key",
        )
    return fair.flag("enable", default=top.text("apiVersion").endswith("/v1beta2"))
