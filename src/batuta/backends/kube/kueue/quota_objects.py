"""Kueue's objects as the cluster has them, and the quota that they make together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.kinds import Setting
from batuta.backends.kube.kueue.notices import Fault
from batuta.core.quota import Cohort, LocalQueue, Quota
from batuta.spec.kueue.files import read_quota_objects
from batuta.spec.kueue.objects import Value
from batuta.spec.problem import InputError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A quota, and what is wrong with objects, by uid. Who is refused is not part of it."""

    quota: Quota
    faults: Mapping[str, Fault] = field(default_factory=dict)


class _Read(NamedTuple):
    """What one object says, or what is wrong with it."""

    uid: str
    generation: int
    value: Value | None
    fault: str


class QuotaObjects:
    """Told of objects as they come, change and go; reads each once, until it changes."""

    def __init__(self) -> None:
        self._settings: dict[Kind[Any], dict[str, Setting]] = {kind: {} for kind in kinds.SETTINGS}
        self._read: dict[tuple[Kind[Any], str], _Read] = {}

    def note(self, kind: Kind[Any], change: Change[Setting]) -> bool:
        """Whether the quota may be another one now: a status is nothing to it."""
        found, old = change.object, change.old
        meta = found.metadata
        key = f"{meta.namespace}/{meta.name}"
        if change.did is Did.DELETED:
            self._read.pop((kind, key), None)
            return self._settings[kind].pop(key, None) is not None
        self._settings[kind][key] = found
        return (
            old is None
            or old.metadata.generation != meta.generation
            or old.metadata.deletion_timestamp != meta.deletion_timestamp
        )

    def priorities(self) -> dict[str, int]:
        """The numbers behind the names of WorkloadPriorityClasses."""
        return {
            one.metadata.name: one.value for one in self._settings[kinds.WORKLOAD_PRIORITY_CLASS].values()
        }

    def all_of(self, kind: Kind[Any]) -> Mapping[str, Setting]:
        """By `namespace/name`, with an empty namespace for what is in none."""
        return self._settings[kind]

    def quota(self, labels_of: Mapping[str, Mapping[str, str]], fair_sharing: bool = False) -> Found:
        """The whole. `labels_of`: labels of each namespace, by which a ClusterQueue chooses whom it takes."""
        faults: dict[str, Fault] = {}
        by_kind: dict[Kind[Any], list[Any]] = {}
        for kind in kinds.SETTINGS:
            by_kind[kind] = [value for _, value in self._values(kind, faults)]
        self._note_circles(by_kind[kinds.COHORT], faults)
        quota = Quota(
            flavors=tuple(by_kind[kinds.RESOURCE_FLAVOR]),
            cohorts=tuple(by_kind[kinds.COHORT]),
            cluster_queues=tuple(by_kind[kinds.CLUSTER_QUEUE]),
            priority_classes=tuple(by_kind[kinds.WORKLOAD_PRIORITY_CLASS]),
            fair_sharing=fair_sharing,
        )
        doors = tuple(self._doors(by_kind[kinds.LOCAL_QUEUE], quota, labels_of, faults))
        return Found(
            Quota(
                quota.flavors,
                quota.cohorts,
                quota.cluster_queues,
                doors,
                quota.priority_classes,
                fair_sharing,
            ),
            faults,
        )

    def _values(self, kind: Kind[Any], faults: dict[str, Fault]) -> Iterator[tuple[Setting, Value]]:
        """In the order of names. What is being deleted counts as gone: it starts nothing any more."""
        for key, setting in sorted(self._settings[kind].items()):
            if setting.metadata.deletion_timestamp:
                continue
            read = self._read_once(kind, key, setting)
            if read.value is None:
                faults[read.uid] = Fault(kind, setting.metadata, read.fault)
            else:
                yield setting, read.value

    def _read_once(self, kind: Kind[Any], key: str, setting: Setting) -> _Read:
        meta = setting.metadata
        known = self._read.get((kind, key))
        if known is None or (known.uid, known.generation) != (meta.uid, meta.generation):
            known = self._read[kind, key] = _read(kind, setting)
        return known

    def _note_circles(self, cohorts: list[Cohort], faults: dict[str, Fault]) -> None:
        """Queues below a circle start nothing, as in Kueue; here it is said who goes round in it."""
        parent_of = {cohort.name: cohort.parent for cohort in cohorts}
        for name in parent_of:
            way = [name]
            while (above := parent_of.get(way[-1], "")) and above not in way:
                way.append(above)
            if above == name:
                meta = self._settings[kinds.COHORT][f"/{name}"].metadata
                sentence = f"cohorts go round in a circle: {' → '.join((*way, name))}; take one parent out"
                faults[meta.uid] = Fault(kinds.COHORT, meta, sentence)

    def _doors(
        self,
        local_queues: list[LocalQueue],
        quota: Quota,
        labels_of: Mapping[str, Mapping[str, str]],
        faults: dict[str, Fault],
    ) -> Iterator[LocalQueue]:
        """Local queues of namespaces that their ClusterQueue takes."""
        for local in local_queues:
            queue = quota.queue_of.get(local.cluster_queue)
            selector = None if queue is None else queue.namespaces
            labels = labels_of.get(local.namespace, {})
            if queue is None or (selector is not None and selector.selects(labels)):
                yield local
                continue
            meta = self._settings[kinds.LOCAL_QUEUE][f"{local.namespace}/{local.name}"].metadata
            sentence = (
                f"ClusterQueue {queue.name} takes no jobs of namespace {local.namespace}: its "
                "namespaceSelector does not select it; label the namespace, or change the selector"
            )
            faults[meta.uid] = Fault(kinds.LOCAL_QUEUE, meta, sentence)


def _read(kind: Kind[Any], setting: Setting) -> _Read:
    """Called once for each version of an object, so that notes about it are told once."""
    meta = setting.metadata
    try:
        change = read_quota_objects([setting.plain(kind)])
    except InputError as error:
        sentence = "; ".join(str(problem) for problem in error.problems)
        return _Read(meta.uid, meta.generation, None, sentence)
    for note in change.notes:
        _log.info("%s", note)
    if not change.objects:
        return _Read(meta.uid, meta.generation, None, "it says nothing that Batuta understands")
    return _Read(meta.uid, meta.generation, change.objects[0].value, "")
