"""The objects that the operator watches, by key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.known import Change, Did, key_of
from batuta.backends.kube.operator.gangs import Owners
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import JobId


@dataclass(slots=True)
class Observed:
    """What the API server shows, as far as we have heard."""

    nodes: dict[str, objects.Node] = field(default_factory=dict)
    pods: dict[str, objects.Pod] = field(default_factory=dict)
    unified_jobs: dict[str, UnifiedJob] = field(default_factory=dict)
    jobs: dict[str, objects.Batch] = field(default_factory=dict)
    job_sets: dict[str, objects.Batch] = field(default_factory=dict)
    mpi_jobs: dict[str, objects.Batch] = field(default_factory=dict)
    pod_groups: dict[str, objects.PodGroup] = field(default_factory=dict)
    workload_groups: dict[str, objects.Batch] = field(default_factory=dict)
    topologies: dict[str, objects.NodeResourceTopology] = field(default_factory=dict)
    priorities: dict[str, objects.PriorityClass] = field(default_factory=dict)
    workload_priorities: dict[str, int] = field(default_factory=dict)
    """What administrators of quota call priorities, which are about quota and not about pods."""
    namespaces: dict[str, objects.Batch] = field(default_factory=dict)

    def owners(self) -> Owners:
        return Owners(self.jobs, self.job_sets, self.pod_groups, self.workload_groups)

    def note(self, table: dict[str, Any], change: Change[Any]) -> str:
        """Notes one change, and returns the key of the object."""
        key = key_of(change.object.metadata)
        if change.did is Did.DELETED:
            table.pop(key, None)
        else:
            table[key] = change.object
        return key

    def owned(self, table: dict[str, objects.Batch], job: JobId) -> list[objects.Batch]:
        """The objects of a table that belong to a UnifiedJob."""
        space, _, name = job.partition("/")
        return [
            one
            for one in table.values()
            if one.metadata.namespace == space and one.metadata.labels.get(names.JOB_NAME) == name
        ]

    def is_going(self, namespace: str) -> bool:
        """Whether a namespace is being deleted, and everything in it sooner or later."""
        found = self.namespaces.get(namespace)
        return found is not None and bool(found.metadata.deletion_timestamp)

    def priority(self, name: str) -> int:
        """The number behind the name of a priority; that of the default where nothing is named."""
        if name:
            found = self.priorities.get(name)
            return 0 if found is None else found.value
        return next((one.value for one in self.priorities.values() if one.global_default), 0)
