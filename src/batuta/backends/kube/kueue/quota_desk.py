"""Tells the World what quota there is, when it is another one than before."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from batuta.backends.kube import objects
from batuta.backends.kube.client import kinds as core_kinds
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.kinds import QueueFiles
from batuta.backends.kube.kueue.notices import Notices
from batuta.backends.kube.kueue.queue_files import read_queue_files
from batuta.backends.kube.kueue.quota_objects import Found, QuotaObjects
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.core import event as ev
from batuta.core.event import Event
from batuta.core.quota import Quota

SETTLE_S: Final = 0.1
"""Objects rarely change alone: what is applied together shall hold together."""
_NEEDED: Final = {kinds.RESOURCE_FLAVOR, kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE}
"""A cluster that has these has Kueue's definitions; older ones of it have no cohorts of their own."""
_log = logging.getLogger(__name__)


class QuotaDesk:
    """From Kueue's objects where the cluster has them, else from files in a ConfigMap and `config.queues`."""

    def __init__(
        self,
        say: Callable[[Event], None],
        notices: Notices,
        *,
        known: Quota,
        base: Quota,
        fair_sharing: bool = False,
        priorities: dict[str, int] | None = None,
        touch: Callable[[], None] = lambda: None,
    ) -> None:
        """`known`: what the World has from before. `base`: queues of the operator's configuration.

        `priorities` is kept up to date: the numbers of priority classes by name. After a change of them
        `touch` is called.
        """
        self.objects = QuotaObjects()
        self._say = say
        self._notices = notices
        self._known = known
        self._base = base
        self._fair_sharing = fair_sharing
        self._priorities = {} if priorities is None else priorities
        self._touch = touch
        self._files: QueueFiles | None = None
        self._last_good = known or base
        self._served: set[Any] = set()
        self._labels: dict[str, Mapping[str, str]] = {}
        self._due_s = -math.inf
        """When it has to be looked at again; at the first turn in any case."""

    @property
    def quota(self) -> Quota:
        """As the World was told it."""
        return self._known

    # ------------------------------------------------------------------------------------ what comes in

    def take(self, changed: Changed, now_s: float) -> None:
        kind = changed.kind
        if kind in self._takes:
            if not changed.changes:
                self._served.add(kind)
                self._doubt(now_s)
            for change in changed.changes:
                if self.objects.note(kind, change):
                    self._doubt(now_s)
        elif kind is kinds.QUEUE_FILES:
            for change in changed.changes:
                self._files = None if change.did is Did.DELETED else change.object
                self._doubt(now_s)
        elif kind is core_kinds.NAMESPACE:
            for change in changed.changes:
                self._namespace(change, now_s)

    _takes: Final = frozenset(kinds.SETTINGS)

    def _namespace(self, change: Change[objects.Batch], now_s: float) -> None:
        meta = change.object.metadata
        before = self._labels.get(meta.name)
        if change.did is Did.DELETED:
            self._labels.pop(meta.name, None)
        else:
            self._labels[meta.name] = meta.labels
        if before != self._labels.get(meta.name):
            self._doubt(now_s)

    def _doubt(self, now_s: float) -> None:
        """The quota may be another one: that is looked at in a moment, when what comes with this is there."""
        if self._due_s == math.inf:
            self._due_s = now_s + SETTLE_S

    def heard(self, written: Written, now_s: float) -> None:
        """A warning that could not be written stands in the log."""

    # ---------------------------------------------------------------------------------------- its turn

    def next_s(self) -> float:
        return self._due_s

    def drive(self, now_s: float) -> None:
        if now_s < self._due_s:
            return
        self._due_s = math.inf
        found = self._find()
        self._notices.tell(found.faults, now_s)
        if found.quota != self._known:
            self._known = found.quota
            _log.info("quota: %s", summary(found.quota))
            self._say(ev.QuotaSet(now_s, found.quota, cause="kubernetes"))
        self._note_priorities({one.name: one.value for one in found.quota.priority_classes})

    def _note_priorities(self, priorities: dict[str, int]) -> None:
        if priorities != self._priorities:
            self._priorities.clear()
            self._priorities.update(priorities)
            self._touch()

    def _find(self) -> Found:
        if self._served >= _NEEDED:
            return self.objects.quota(self._labels, self._fair_sharing)
        found = read_queue_files(self._files, self._base, self._last_good)
        self._last_good = found.quota
        return found


def summary(quota: Quota) -> str:
    """For the log."""
    counts = (
        (len(quota.cluster_queues), "cluster queue"),
        (len(quota.local_queues), "local queue"),
        (len(quota.cohorts), "cohort"),
        (len(quota.flavors), "flavor"),
    )
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)
