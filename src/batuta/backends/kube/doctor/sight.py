"""All that is looked at in a cluster, fetched at once: what is wrong is worked out without asking again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden, NotFound
from batuta.backends.kube.client.kinds import NODE, POD, Kind, Stored
from batuta.backends.kube.client.lease import LEASE, Lease
from batuta.backends.kube.kueue.kinds import WORKLOAD, Setting
from batuta.backends.kube.objects import Batch, Node, Pod
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.unified_job.model import UnifiedJob

DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment", Batch)
DAEMON_SET: Final = Kind("apps", "v1", "daemonsets", "DaemonSet", Batch)
OURS: Final = "app.kubernetes.io/part-of=batuta"
COMPONENT: Final = "app.kubernetes.io/component"
VERSION: Final = "app.kubernetes.io/version"
_NODE_LEASES: Final = "kube-node-lease"
_PAGE: Final = 500
_T = TypeVar("_T", bound=Stored)


@dataclass(frozen=True, slots=True)
class Sight:
    """A cluster at one moment. None where the user may not look; empty where there is nothing."""

    asked_s: float
    answered_s: float
    """When its time was asked for and told, by our own clock."""
    server_s: float | None
    """Its time then, to the second."""
    deployments: Sequence[Batch] | None = ()
    daemon_sets: Sequence[Batch] | None = ()
    leases: Sequence[Lease] | None = ()
    """Of the operators' namespaces."""
    node_leases: Sequence[Lease] | None = ()
    nodes: Sequence[Node] | None = ()
    pods: Sequence[Pod] | None = ()
    """Of Batuta's jobs."""
    jobs: Sequence[UnifiedJob] | None = ()
    has_definition: bool = True
    workloads: Sequence[Setting] | None = ()
    """Kueue's, where the cluster has them."""
    refused: tuple[str, ...] = field(default=())
    """Kinds that the user may not list."""

    @property
    def now_s(self) -> float:
        """By the clock that wrote all times in it."""
        return self.answered_s if self.server_s is None else self.server_s


async def look(api: Api, namespace: str = "") -> Sight:
    """Everything; jobs and their pods of one namespace, or of all. Raises ApiError if nobody answers."""
    asked_s = time.time()
    await api.transport.request("version", "GET", "/version")
    answered_s, said = time.time(), api.transport.date
    lister = _Lister(api)
    deployments = await lister.all(DEPLOYMENT, labels=OURS)
    homes = {one.metadata.namespace for one in deployments or ()}
    leases: list[Lease] | None = []
    for home in sorted(homes):
        found = await lister.all(LEASE, home)
        leases = None if found is None or leases is None else [*leases, *found]
    jobs = await lister.all(UNIFIED_JOB, namespace)
    return Sight(
        asked_s,
        answered_s,
        _seconds_of_date(said),
        deployments,
        await lister.all(DAEMON_SET, labels=OURS),
        leases,
        await lister.all(LEASE, _NODE_LEASES),
        await lister.all(NODE),
        await lister.all(POD, namespace, labels=names.JOB_NAME),
        jobs,
        str(UNIFIED_JOB) not in lister.missing,
        await _workloads(api, lister, namespace),
        tuple(lister.refused),
    )


async def _workloads(api: Api, lister: _Lister, namespace: str) -> Sequence[Setting] | None:
    served = await api.discover(WORKLOAD.group)
    version = served.version_of(WORKLOAD.plural)
    if not version:
        return ()
    kind = Kind(WORKLOAD.group, version, WORKLOAD.plural, WORKLOAD.name, WORKLOAD.type)
    return await lister.all(kind, namespace)


class _Lister:
    """Lists what there is, and notes what may not be seen or is not known here."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.refused: list[str] = []
        self.missing: list[str] = []

    async def all(self, kind: Kind[_T], namespace: str = "", labels: str = "") -> Sequence[_T] | None:
        try:
            return (await self._api.list(kind, namespace, labels=labels, page=_PAGE)).items
        except Forbidden:
            if str(kind) not in self.refused:
                self.refused.append(str(kind))
            return None
        except NotFound:
            self.missing.append(str(kind))
            return ()


def seconds(text: Any) -> float | None:
    """A time of the API server; None where there is none, or none that can be read."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, TypeError):
        return None


def _seconds_of_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, TypeError):
        return None
