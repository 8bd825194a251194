"""Objects that jobs and gangs refer to: when one changes, whoever depends on it is looked at again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.operator.gangs import GangId
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.watched import WORKLOAD_GROUP
from batuta.core.job import JobId

Taker: TypeAlias = Callable[[Change[Any]], Iterable[JobId]]


class Referred:
    """Takes in owners of pods, groups, priorities and namespaces, and says whom they concern."""

    def __init__(self, observed: Observed, cluster: Cluster, jobs: Collection[JobId]) -> None:
        """`jobs`: all that there are at any time."""
        self._observed = observed
        self._cluster = cluster
        self._jobs = jobs
        self.takers: dict[Kind[Any], Taker] = {
            kinds.JOB: partial(self._owner, observed.jobs, "job"),
            kinds.JOB_SET: partial(self._owner, observed.job_sets, "jobset"),
            kinds.MPI_JOB: partial(self._owner, observed.mpi_jobs, "mpijob"),
            kinds.POD_GROUP: partial(self._group, observed.pod_groups, "podgroup"),
            WORKLOAD_GROUP: partial(self._group, observed.workload_groups, "workload"),
            kinds.PRIORITY_CLASS: self._priority,
            kinds.NAMESPACE: self._namespace,
        }

    def _owner(
        self, table: dict[str, objects.Batch], kind: str, change: Change[objects.Batch]
    ) -> list[JobId]:
        """Its pods are a gang, or it belongs to a UnifiedJob itself."""
        concerned = self._group(table, kind, change)
        meta = change.object.metadata
        name = meta.labels.get(names.JOB_NAME)
        return concerned if name is None else [f"{meta.namespace}/{name}", *concerned]

    def _group(self, table: dict[str, Any], kind: str, change: Change[Any]) -> list[JobId]:
        namespace, _, name = self._observed.note(table, change).partition("/")
        return [str(GangId(namespace, kind, name))]

    def _priority(self, change: Change[objects.PriorityClass]) -> list[JobId]:
        name = self._observed.note(self._observed.priorities, change)
        jobs = self._observed.unified_jobs.items()
        return [key for key, uj in jobs if uj.spec.priority_class_name == name]

    def _namespace(self, change: Change[objects.Batch]) -> list[JobId]:
        """Everything in a namespace goes with it."""
        name = self._observed.note(self._observed.namespaces, change)
        if change.did is Did.DELETED:
            self._cluster.namespace_gone(name)
        else:
            self._cluster.namespace_set(name, change.object.metadata.labels)
        if not change.object.metadata.deletion_timestamp:
            return []
        return [job for job in self._jobs if job.startswith(f"{name}/")]
