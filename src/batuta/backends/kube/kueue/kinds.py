"""Kueue's kinds as the API server stores them, and the conditions in their status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.client.kinds import CONFIG_MAP, Kind
from batuta.backends.kube.crd import time_text

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"  # the one that is asked for; a cluster that has only older ones is asked for those
_LONGEST_MESSAGE: Final = 32_768


class KueueObject(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What an administrator wrote: the reader of quota makes sense of it, so it stays plain."""

    api_version: str = ""
    kind: str = ""
    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
    value: objects.Int32 = 0
    description: str = ""

    def plain(self, kind: Kind[Any]) -> dict[str, Any]:
        meta = {"name": self.metadata.name}
        if kind.namespaced:
            meta["namespace"] = self.metadata.namespace
        version = self.api_version or kind.api_version
        whole: dict[str, Any] = {"apiVersion": version, "kind": kind.name, "metadata": meta}
        if kind.plural == WORKLOAD_PRIORITY_CLASS.plural:
            return whole | {"value": self.value, "description": self.description}
        return whole | {"spec": self.spec}


def _kind(plural: str, name: str, namespaced: bool = False) -> Kind[KueueObject]:
    return Kind(GROUP, VERSION, plural, name, KueueObject, namespaced)


RESOURCE_FLAVOR: Final = _kind("resourceflavors", "ResourceFlavor")
COHORT: Final = _kind("cohorts", "Cohort")
CLUSTER_QUEUE: Final = _kind("clusterqueues", "ClusterQueue")
LOCAL_QUEUE: Final = _kind("localqueues", "LocalQueue", namespaced=True)
WORKLOAD_PRIORITY_CLASS: Final = _kind("workloadpriorityclasses", "WorkloadPriorityClass")
WORKLOAD: Final = _kind("workloads", "Workload", namespaced=True)

SETTINGS: Final = (RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS, COHORT, CLUSTER_QUEUE, LOCAL_QUEUE)
"""What quota is made of, in this order: who is referred to comes before who refers to it."""
ALL: Final = (*SETTINGS, WORKLOAD)


QUEUE_FILES: Final = CONFIG_MAP  # its keys are files with objects like these, for clusters that do not know Kueue


class ConditionUpdate(NamedTuple):
    """One statement."""

    type: str
    is_true: bool
    reason: str
    message: str = ""


def conditions(
    statements: Iterable[ConditionUpdate], before: Sequence[Mapping[str, Any]], generation: int, now_s: float
) -> list[dict[str, Any]]:
    """These statements, and those that others made of which nothing is said here."""
    known = {one.get("type"): one for one in before}
    found: dict[str, dict[str, Any]] = {str(kind): dict(one) for kind, one in known.items()}
    for said in statements:
        status, old = "True" if said.is_true else "False", known.get(said.type, {})
        found[said.type] = {
            "type": said.type,
            "status": status,
            "reason": said.reason,
            "message": said.message[:_LONGEST_MESSAGE],
            "lastTransitionTime": old.get("lastTransitionTime") if old.get("status") == status else time_text(now_s),
            "observedGeneration": generation,
        }
    return list(found.values())


def updated(there: KueueObject, statements: Iterable[ConditionUpdate], now_s: float) -> list[dict[str, Any]]:
    return conditions(statements, there.status.get("conditions") or (), there.metadata.generation, now_s)


def truths(listed: Any) -> list[tuple[Any, Any, Any]]:
    """What people and programs act on: type, status and reason of each, in a fixed order."""
    return sorted((str(one.get("type")), str(one.get("status")), str(one.get("reason"))) for one in _mappings(listed))


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in _mappings(status.get("conditions")) if one.get("type") == kind), {})


def _mappings(listed: Any) -> list[Mapping[str, Any]]:
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []


def is_true(status: Mapping[str, Any], kind: str) -> bool:
    return find(status, kind).get("status") == "True"
