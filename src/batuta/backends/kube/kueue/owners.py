"""Whose Workload that of a gang is: the object that its pods belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.backends.kube import objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.kinds import Kind, Stored
from batuta.backends.kube.operator.observed import Observed
from batuta.core.job import JobId


def owner_of_gang(job: JobId, first: objects.Pod, observed: Observed) -> objects.OwnerReference | None:
    """A Job, JobSet or PodGroup, else the gang's first pod; None while the owner is not known."""
    namespace, _, rest = job.partition("/")
    kind, _, name = rest.partition(":")
    tables: dict[str, tuple[Kind[Any], Mapping[str, Stored]]] = {
        "job": (kinds.JOB, observed.jobs),
        "jobset": (kinds.JOB_SET, observed.job_sets),
        "podgroup": (kinds.POD_GROUP, observed.pod_groups),
    }
    if kind not in tables:
        return _reference(kinds.POD, first.metadata)
    its_kind, table = tables[kind]
    found = table.get(f"{namespace}/{name}")
    return None if found is None else _reference(its_kind, found.metadata)


def _reference(kind: Kind[Any], meta: objects.Meta) -> objects.OwnerReference:
    return objects.OwnerReference(
        api_version=kind.api_version, kind=kind.name, name=meta.name, uid=meta.uid, controller=True
    )
