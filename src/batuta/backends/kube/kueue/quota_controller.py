"""Read quota from Kueue's objects, or from a ConfigMap where they are not installed, and tell the World."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from batuta.backends.kube.client import kinds as core_kinds
from batuta.backends.kube.client.informer import Change, ChangeType, key_of
from batuta.backends.kube.client.kinds import ConfigMap, Kind
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.kinds import QUEUE_FILES, KueueObject
from batuta.backends.kube.objects import Batch, Meta
from batuta.backends.kube.operator.workqueue import AskFn, Changed, Written, build_event, create_event, reference
from batuta.core import event as ev
from batuta.core.event import Event
from batuta.core.quota import Cohort, LocalQueue, Quota
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_objects, read_quota_texts
from batuta.spec.kueue.objects import QuotaObject
from batuta.spec.problem import InputError

_MOST: Final = 50  # warnings at a time: a cluster of which everything is wrong is not flooded
_log = logging.getLogger(__name__)
SETTLE_S: Final = 0.1  # objects rarely change alone: what is applied together shall hold together
_NEEDED: Final = {kinds.RESOURCE_FLAVOR, kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE}
"""A cluster that has these has Kueue's definitions; older ones of it have no cohorts of their own."""


class ObjectFault(NamedTuple):
    """What is wrong with an object."""

    kind: Kind[Any]
    metadata: Meta
    sentence: str


@dataclass(slots=True)
class QuotaEventRecorder:
    """Tells each fault once, until it is another one: as a Warning, which `kubectl describe` shows."""

    _ask: AskFn
    _told: dict[str, str] = field(default_factory=dict)

    def tell(self, faults: Mapping[str, ObjectFault], now_s: float) -> None:
        self._told = {uid: said for uid, said in self._told.items() if uid in faults}
        new = [one for uid, one in faults.items() if self._told.get(uid) != one.sentence]
        for fault in new[:_MOST]:
            self._told[fault.metadata.uid] = fault.sentence
            _log.warning("%s %s: %s", fault.kind.name, fault.metadata.name, fault.sentence)
            about, text = reference(fault.kind, fault.metadata), fault.sentence
            event = build_event(about, "Refused", text, now_s, "Warning", said=text, action="ReadQuota")
            self._ask(f"kueue//event/{event['metadata']['name']}", partial(create_event, event), now_s)


@dataclass(frozen=True, slots=True)
class LoadedQuota:
    """A quota, and what is wrong with objects, by uid. Who is refused is not part of it."""

    quota: Quota
    faults: Mapping[str, ObjectFault] = field(default_factory=dict)


class _Read(NamedTuple):
    """What one object says, or what is wrong with it."""

    uid: str
    generation: int
    value: QuotaObject | None
    fault: str


class QuotaObjects:
    """Told of objects as they come, change and go; reads each once, until it changes."""

    def __init__(self) -> None:
        self._settings: dict[Kind[Any], dict[str, KueueObject]] = {kind: {} for kind in kinds.SETTINGS}
        self._read: dict[tuple[Kind[Any], str], _Read] = {}

    def note(self, kind: Kind[Any], change: Change[KueueObject]) -> bool:
        """Whether the quota may be another one now: a status is nothing to it."""
        found, old = change.object, change.old
        meta, key = found.metadata, key_of(found.metadata)
        if change.did is ChangeType.DELETED:
            self._read.pop((kind, key), None)
            return self._settings[kind].pop(key, None) is not None
        self._settings[kind][key] = found
        before = None if old is None else (old.metadata.generation, old.metadata.deletion_timestamp)
        return before != (meta.generation, meta.deletion_timestamp)

    def priorities(self) -> dict[str, int]:
        return {one.metadata.name: one.value for one in self._settings[kinds.WORKLOAD_PRIORITY_CLASS].values()}

    def all_of(self, kind: Kind[Any]) -> Mapping[str, KueueObject]:
        """By `namespace/name`, or by name for what is in no namespace."""
        return self._settings[kind]

    def quota(self, labels_of: Mapping[str, Mapping[str, str]], fair_sharing: bool = False) -> LoadedQuota:
        """The whole. `labels_of`: labels of each namespace, by which a ClusterQueue chooses whom it takes."""
        faults: dict[str, ObjectFault] = {}
        by_kind: dict[Kind[Any], list[Any]] = {kind: list(self._values(kind, faults)) for kind in kinds.SETTINGS}
        self._note_circles(by_kind[kinds.COHORT], faults)
        quota = Quota(
            flavors=tuple(by_kind[kinds.RESOURCE_FLAVOR]),
            cohorts=tuple(by_kind[kinds.COHORT]),
            cluster_queues=tuple(by_kind[kinds.CLUSTER_QUEUE]),
            priority_classes=tuple(by_kind[kinds.WORKLOAD_PRIORITY_CLASS]),
            fair_sharing=fair_sharing,
        )
        doors = tuple(self._doors(by_kind[kinds.LOCAL_QUEUE], quota, labels_of, faults))
        return LoadedQuota(replace(quota, local_queues=doors), faults)

    def _values(self, kind: Kind[Any], faults: dict[str, ObjectFault]) -> Iterator[QuotaObject]:
        """In the order of names. What is being deleted counts as gone: it starts nothing any more."""
        for key, setting in sorted(self._settings[kind].items()):
            if setting.metadata.deletion_timestamp:
                continue
            meta, known = setting.metadata, self._read.get((kind, key))
            if known is None or (known.uid, known.generation) != (meta.uid, meta.generation):
                known = self._read[kind, key] = _read(kind, setting)
            if known.value is None:
                faults[meta.uid] = ObjectFault(kind, meta, known.fault)
            else:
                yield known.value

    def _note_circles(self, cohorts: list[Cohort], faults: dict[str, ObjectFault]) -> None:
        """Queues below a circle start nothing, as in Kueue; here it is said who goes round in it."""
        parent_of = {cohort.name: cohort.parent for cohort in cohorts}
        for name in parent_of:
            way = [name]
            while (above := parent_of.get(way[-1], "")) and above not in way:
                way.append(above)
            if above == name:
                meta = self._settings[kinds.COHORT][name].metadata
                sentence = f"cohorts go round in a circle: {' → '.join((*way, name))}; take one parent out"
                faults[meta.uid] = ObjectFault(kinds.COHORT, meta, sentence)

    def _doors(
        self,
        local_queues: list[LocalQueue],
        quota: Quota,
        labels_of: Mapping[str, Mapping[str, str]],
        faults: dict[str, ObjectFault],
    ) -> Iterator[LocalQueue]:
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
            faults[meta.uid] = ObjectFault(kinds.LOCAL_QUEUE, meta, sentence)


def _read(kind: Kind[Any], setting: KueueObject) -> _Read:
    """Called once for each version of an object, so that notes about it are told once."""
    meta = setting.metadata
    try:
        change = read_quota_objects([setting.plain(kind)])
    except InputError as error:
        return _Read(meta.uid, meta.generation, None, "; ".join(map(str, error.problems)))
    for note in change.notes:
        _log.info("%s", note)
    if not change.objects:
        return _Read(meta.uid, meta.generation, None, "it says nothing that Batuta understands")
    return _Read(meta.uid, meta.generation, change.objects[0].value, "")


def read_queue_files(config_map: ConfigMap | None, base: Quota, last: Quota) -> LoadedQuota:
    """What the files say on top of `base`. All or nothing: with a fault in them the last good value stays."""
    if config_map is None:
        return LoadedQuota(base)
    try:
        change = read_quota_texts(sorted(config_map.data.items()))
        quota = merge(base, change)
    except InputError as error:
        sentence = f"the quota stays as it was: {'; '.join(map(str, error.problems))}"
        meta = config_map.metadata
        return LoadedQuota(last, {meta.uid: ObjectFault(QUEUE_FILES, meta, sentence)})
    if quota != last:
        for note in change.notes:
            _log.info("%s", note)
    return LoadedQuota(quota)


def quota_from_config(queues: list[dict[str, Any]]) -> Quota:
    import yaml

    if not queues:
        return Quota()
    return merge(Quota(), read_quota_texts([("config.queues", yaml.safe_dump({"queues": queues}))]))


@dataclass(slots=True, eq=False)
class QuotaController:
    """From Kueue's objects where the cluster has them, else from files in a ConfigMap and `config.queues`."""

    _say: Callable[[Event], None]
    _notices: QuotaEventRecorder
    _: KW_ONLY
    known: Quota  # as the World was told it; at first, what it has from before
    base: Quota  # queues of the operator's configuration
    fair_sharing: bool = False
    priorities: dict[str, int] = field(default_factory=dict)
    """The numbers of priority classes by name, kept up to date; after a change of them `touch` is called."""
    touch: Callable[[], None] = lambda: None
    objects: QuotaObjects = field(default_factory=QuotaObjects, init=False)
    _last_good: Quota = field(default_factory=Quota, init=False)
    _files: ConfigMap | None = field(default=None, init=False)
    _served: set[Any] = field(default_factory=set, init=False)
    _labels: dict[str, Mapping[str, str]] = field(default_factory=dict, init=False)
    _author: str | None = field(default=None, init=False)  # who changed the operator's configuration since
    _due_s: float = field(default=-math.inf, init=False)
    """When it has to be looked at again; at the first turn in any case."""

    def __post_init__(self) -> None:
        self._last_good = self.known or self.base

    def take(self, changed: Changed, now_s: float) -> None:
        kind = changed.kind
        if kind in kinds.SETTINGS:
            if not changed.changes:
                self._served.add(kind)
                self._doubt(now_s)
            for change in changed.changes:
                if self.objects.note(kind, change):
                    self._doubt(now_s)
        elif kind is kinds.QUEUE_FILES:
            for change in changed.changes:
                self._files = None if change.did is ChangeType.DELETED else change.object
                self._doubt(now_s)
        elif kind is core_kinds.NAMESPACE:
            for change in changed.changes:
                self._namespace(change, now_s)

    def _namespace(self, change: Change[Batch], now_s: float) -> None:
        meta = change.object.metadata
        before = self._labels.get(meta.name)
        if change.did is ChangeType.DELETED:
            self._labels.pop(meta.name, None)
        else:
            self._labels[meta.name] = meta.labels
        if before != self._labels.get(meta.name):
            self._doubt(now_s)

    def _doubt(self, now_s: float) -> None:
        """The quota may be another one: that is looked at in a moment, when what comes with this is there."""
        if self._due_s == math.inf:
            self._due_s = now_s + SETTLE_S

    def reconfigure(self, base: Quota, author: str, now_s: float) -> None:
        """Takes up other queues of the operator's configuration, which an author has changed."""
        self.base, self.fair_sharing, self._author = base, base.fair_sharing, author
        self._due_s = now_s

    def heard(self, written: Written, now_s: float) -> None:
        """A warning that could not be written stands in the log."""

    def next_s(self) -> float:
        return self._due_s

    def drive(self, now_s: float) -> None:
        if now_s < self._due_s:
            return
        self._due_s = math.inf
        found = self._find()
        self._notices.tell(found.faults, now_s)
        if found.quota != self.known:
            self.known = found.quota
            _log.info("quota: %s", summary(found.quota))
            self._say(ev.QuotaSet(now_s, found.quota, cause="kubernetes", actor=self._author))
        self._author = None
        priorities = {one.name: one.value for one in found.quota.priority_classes}
        if priorities != self.priorities:
            self.priorities.clear()
            self.priorities.update(priorities)
            self.touch()

    def _find(self) -> LoadedQuota:
        if self._served >= _NEEDED:
            return self.objects.quota(self._labels, self.fair_sharing)
        found = read_queue_files(self._files, self.base, self._last_good)
        self._last_good = found.quota
        return found


def summary(quota: Quota) -> str:
    counts = (
        (len(quota.cluster_queues), "cluster queue"),
        (len(quota.local_queues), "local queue"),
        (len(quota.cohorts), "cohort"),
        (len(quota.flavors), "flavor"),
    )
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)
