"""Informers of all kinds that the operator watches, including kinds that are installed later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api, ServedGroup
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.informer import Change, ChangeType, Informer
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.objects import Batch, Pod
from batuta.backends.kube.operator.cache import slim_batch, slim_pod, slim_unified_job
from batuta.backends.kube.operator.workqueue import Changed, Inbox, Unreadable
from batuta.backends.kube.operator_config_map import OPERATOR_CONFIG
from batuta.backends.kube.trial.model import TRIAL_RUN
from batuta.backends.kube.unified_job.model import UNIFIED_JOB

WORKLOAD_GROUP: Final = Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", Batch)
"""The upstream group; which version is served depends on the cluster."""

ALWAYS: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.PRIORITY_CLASS,
    kinds.JOB,
    UNIFIED_JOB,
    kinds.POD,
)
"""In this order: pods come last, when all that they refer to is there."""
EVERYWHERE: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.PRIORITY_CLASS,
    kinds.NODE_TOPOLOGY,
    kinds.POD,
    *(kind for kind in kueue.ALL if not kind.namespaced),
)
"""Not only where jobs may be: pods of others use nodes up as well."""
IF_SERVED: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE_TOPOLOGY,
    kinds.POD_GROUP,
    kinds.JOB_SET,
    kinds.MPI_JOB,
    WORKLOAD_GROUP,
    TRIAL_RUN,
)
SETTINGS: Final[tuple[Kind[Any], ...]] = (OPERATOR_CONFIG, kueue.QUEUE_FILES, *kueue.ALL)
"""The configuration, where quota comes from, and jobs as Kueue sees them; watched as far as the first says."""
ANY_VERSION: Final[tuple[Kind[Any], ...]] = (WORKLOAD_GROUP, *kueue.ALL)
"""Read in whatever version the cluster has, if it does not have the one that we know best."""
SLIM: Final[dict[Kind[Any], Callable[[Any], Any]]] = {
    kinds.POD: slim_pod,
    kinds.JOB: slim_batch,
    kinds.MPI_JOB: slim_batch,
    UNIFIED_JOB: slim_unified_job,
}
"""What is kept of objects that are over: there may be thousands of them, and nothing is done with them."""
LOOK_AGAIN_S: Final = 30.0  # how often the cluster is asked whether it has more kinds by now
_log = logging.getLogger(__name__)


class Relevance(Enum):
    """What a change says that was not known."""

    NONE = "nothing that is read here"
    STATUS = "how a pod is doing that is where it was"
    MORE = "something that may call for a decision"


@dataclass(slots=True)
class InformerSet:
    """Puts what informers hear into the inbox. For the event loop."""

    api: Api
    inbox: Inbox
    namespaces: Sequence[str]  # where jobs may be; empty for everywhere. Pods are watched in all of them anyway.
    tasks: asyncio.TaskGroup
    further: Sequence[Kind[Any]] = ()  # kinds that are watched as well where the cluster has them
    files: tuple[str, str] | None = None  # namespace and name of the ConfigMap with queues
    config: tuple[str, str] | None = None  # and of the one with the operator's configuration
    _missing: list[Kind[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._missing = [*IF_SERVED, *self.further]

    async def start(self) -> None:
        """Returns when all that is there has been listed."""
        self.api.malformed.on_malformed = lambda *what: self.inbox.put(Unreadable(*what))
        informers = [one for kind in ALWAYS for one in self._watch(kind, kind)]
        if self.files is not None:
            informers.append(self._watch_one(kueue.QUEUE_FILES, *self.files))
        if self.config is not None:
            # Not waited for: a role of an older version may not read it, and the configuration is known without.
            self._watch_one(OPERATOR_CONFIG, *self.config)
        found = await self._found()
        await self._watch_all(found)
        for informer in informers:
            await informer.synced.wait()
        self.tasks.create_task(self._look_again())

    async def _watch_all(self, found: Sequence[tuple[Kind[Any], Kind[Any]]]) -> None:
        """Begins with kinds that the cluster has, and says so when all that there is of them was listed."""
        for informer in [one for kind, served in found for one in self._watch(kind, served)]:
            await informer.synced.wait()
        for kind, served in found:
            self.inbox.put(Changed(kind, (), served.version))

    def _watch(self, kind: Kind[Any], served: Kind[Any]) -> list[Informer[Any]]:
        places = ("",) if kind in EVERYWHERE else self.namespaces or ("",)
        found = [
            Informer(self.api, served, self._handler(kind), namespace=place, slim=SLIM.get(kind)) for place in places
        ]
        for informer in found:
            self.tasks.create_task(informer.run())
        return found

    def _watch_one(self, kind: Kind[Any], namespace: str, name: str) -> Informer[Any]:
        informer = Informer(self.api, kind, self._handler(kind), namespace=namespace, fields=f"metadata.name={name}")
        self.tasks.create_task(informer.run())
        return informer

    def _handler(self, kind: Kind[Any]) -> Callable[[Sequence[Change[Any]]], None]:
        def tell(changes: Sequence[Change[Any]]) -> None:
            found = [(change, news_of(change)) for change in changes]
            news = [change for change, what in found if what is not Relevance.NONE]
            if news:
                self.inbox.put(Changed(kind, news), urgent=any(what is Relevance.MORE for _, what in found))

        return tell

    async def _look_again(self) -> None:
        while self._missing:
            await asyncio.sleep(LOOK_AGAIN_S)
            found = await self._found()
            # One that may not be listed must not keep us from seeing others.
            self.tasks.create_task(self._watch_all(found))

    async def _found(self) -> list[tuple[Kind[Any], Kind[Any]]]:
        """Kinds of other projects that the cluster has and that were missing, each as it is served."""
        found: list[tuple[Kind[Any], Kind[Any]]] = []
        groups = {group: await self._served(group) for group in dict.fromkeys(one.group for one in self._missing)}
        for kind in tuple(self._missing):
            served, version = groups[kind.group], kind.version
            if kind in ANY_VERSION and not served.has(version, kind.plural):
                version = served.version_of(kind.plural)
            if served.has(version, kind.plural):
                self._missing.remove(kind)
                _log.info("the cluster has %s", kind)
                found.append((kind, kind if version == kind.version else replace(kind, version=version)))
        return found

    async def _served(self, group: str) -> ServedGroup:
        try:
            return await self.api.discover(group)
        except ApiError as error:
            _log.warning("cannot see what the cluster has of %s: %s; trying again", group, error)
            return ServedGroup()


def news_of(change: Change[Any]) -> Relevance:
    """What an object says that it did not say before, of what is read of it.

    The heartbeats of a thousand nodes, and what others write into fields that are not read here, would
    otherwise wake the engine all the time.
    """
    now, before = change.object, change.old
    if change.did is not ChangeType.MODIFIED or before is None:
        return Relevance.MORE
    version, now.metadata.resource_version = now.metadata.resource_version, before.metadata.resource_version
    try:
        if now == before:
            return Relevance.NONE
        goes_on = isinstance(now, Pod) and not is_over(now)
        is_same = goes_on and now.metadata == before.metadata and now.spec == before.spec
        return Relevance.STATUS if is_same else Relevance.MORE
    finally:
        now.metadata.resource_version = version
