"""The kinds of Kueue, as the API server has them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.client.kinds import Kind

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
"""The one that is asked for; a cluster that has only older ones is asked for those."""


class Setting(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What an administrator wrote: the reader of quota makes sense of it, so it stays plain."""

    api_version: str = ""
    kind: str = ""
    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
    value: int = 0
    description: str = ""

    def plain(self, kind: Kind[Any]) -> dict[str, Any]:
        """As it stands in a file. `kind` is what it was listed as."""
        meta = {"name": self.metadata.name}
        if kind.namespaced:
            meta["namespace"] = self.metadata.namespace
        whole: dict[str, Any] = {
            "apiVersion": self.api_version or kind.api_version,
            "kind": kind.name,
            "metadata": meta,
        }
        if kind.plural == WORKLOAD_PRIORITY_CLASS.plural:
            return whole | {"value": self.value, "description": self.description}
        return whole | {"spec": self.spec}


def _kind(plural: str, name: str, namespaced: bool = False) -> Kind[Setting]:
    return Kind(GROUP, VERSION, plural, name, Setting, namespaced)


RESOURCE_FLAVOR: Final = _kind("resourceflavors", "ResourceFlavor")
COHORT: Final = _kind("cohorts", "Cohort")
CLUSTER_QUEUE: Final = _kind("clusterqueues", "ClusterQueue")
LOCAL_QUEUE: Final = _kind("localqueues", "LocalQueue", namespaced=True)
WORKLOAD_PRIORITY_CLASS: Final = _kind("workloadpriorityclasses", "WorkloadPriorityClass")
WORKLOAD: Final = _kind("workloads", "Workload", namespaced=True)

SETTINGS: Final = (RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS, COHORT, CLUSTER_QUEUE, LOCAL_QUEUE)
"""What quota is made of, in this order: who is referred to comes before who refers to it."""
ALL: Final = (*SETTINGS, WORKLOAD)


class QueueFiles(msgspec.Struct, kw_only=True):
    """A ConfigMap whose keys are files with objects like these, for clusters that do not know Kueue."""

    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    data: dict[str, str] = {}


QUEUE_FILES: Final = Kind("", "v1", "configmaps", "ConfigMap", QueueFiles)
