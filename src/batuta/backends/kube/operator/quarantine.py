"""Objects that the operator could not understand: each is set aside, and concerns no other.

It is counted, logged once, and shown as an Event and, on pods and nodes, as a condition; UnifiedJobs and TrialRuns say
it in the conditions that they have anyway. An object is looked at again whenever it changes, and after a restart.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api, Patch
from batuta.backends.kube.client.errors import Forbidden, NotFound
from batuta.backends.kube.client.informer import Change, ChangeType, key_of
from batuta.backends.kube.client.kinds import NODE, POD, Kind
from batuta.backends.kube.crd import time_text
from batuta.backends.kube.objects import Condition, Meta
from batuta.backends.kube.operator.workqueue import WriteQueue, build_event, create_event, reference
from batuta.engine.fence import Fence, sentence

OBJECTS: Final = "objects of the cluster"  # the part that fails where an object is not understood
CONDITION: Final = f"{names.GROUP}/Quarantined"
REASON: Final = "NotUnderstood"
PREFIX: Final = "quarantine/"
MOST: Final = 10_000  # objects that are remembered; of more it is told again and again
_SHOWN: Final = (POD, NODE)  # kinds that get a condition from here
_log = logging.getLogger(__name__)


class ObjectKey(NamedTuple):
    """An object by kind and `namespace/name`, and what could not be done with it."""

    kind: str
    key: str
    step: str = "take"  # or `drive`: it could be taken in, and not be reconciled


class _Kept(NamedTuple):
    uid: str
    why: str


class Quarantine:
    """For the engine's thread; `counts` and `total` are for all."""

    def __init__(self, fence: Fence, writes: WriteQueue) -> None:
        self._fence = fence
        self._writes = writes
        self._kept: dict[ObjectKey, _Kept] = {}
        self._total: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(
        self, kind: Kind[Any], changes: Sequence[Change[Any]], taker: Callable[[Change[Any]], None], now_s: float
    ) -> None:
        """Has each change taken in. What is raised concerns that object alone."""
        for change in changes:
            try:
                taker(change)
            except Exception as error:
                self.add(kind, change.object.metadata, error, now_s)
            else:
                self._release(kind, change, now_s)

    def add(
        self, kind: Kind[Any], meta: Meta, error: Exception, now_s: float, *, step: str = "take", part: str = OBJECTS
    ) -> None:
        """Sets an object aside, and says so once for each thing that is wrong with it."""
        error.add_note(f"{kind.name} {_cut(key_of(meta))}")
        self._fence.failed(part, error)
        key, why = ObjectKey(kind.name, key_of(meta), step), sentence(error)
        known = self._kept.get(key)
        if known is not None and known.why == why and known.uid == meta.uid:
            return
        with self._lock:
            self._total[kind.name] += 1
            if known is not None or len(self._kept) < MOST:
                self._kept[key] = _Kept(meta.uid, why)
        _log.warning("%s %s is not understood and set aside: %s", kind.name, _cut(key.key), why)
        if not meta.name:
            return
        event = build_event(reference(kind, meta), REASON, f"Batuta sets it aside: {why}", now_s, "Warning", said=why)
        self._ask(f"event/{event['metadata']['name']}", partial(create_event, event), now_s)
        if kind in _SHOWN:
            self._condition(kind, meta, "True", why, now_s)

    def release(self, kind: Kind[Any], meta: Meta, step: str = "take") -> None:
        """What could not be done with an object was done, or it is gone."""
        key = ObjectKey(kind.name, key_of(meta), step)
        if key in self._kept:
            with self._lock:
                del self._kept[key]
        if not self._kept:
            self._fence.worked(OBJECTS)

    def counts(self) -> Mapping[str, int]:
        """By kind: how many objects are set aside now."""
        with self._lock:
            return Counter(key.kind for key in self._kept)

    def total(self) -> Mapping[str, int]:
        """By kind: how often an object was set aside since the start."""
        with self._lock:
            return dict(self._total)

    def __bool__(self) -> bool:
        """Whether any object is set aside."""
        return bool(self._kept)

    def _release(self, kind: Kind[Any], change: Change[Any], now_s: float) -> None:
        """An object is understood again, or is gone. Its condition may be from an operator before this one."""
        if not self._kept and kind not in _SHOWN:
            return
        meta, is_gone = change.object.metadata, change.did is ChangeType.DELETED
        self.release(kind, meta)
        if is_gone:
            self.release(kind, meta, "drive")
        elif kind in _SHOWN and _is_shown(change.object.status.conditions):
            self._condition(kind, meta, "False", "it is understood again", now_s)

    def _condition(self, kind: Kind[Any], meta: Meta, status: str, why: str, now_s: float) -> None:
        said = {"type": CONDITION, "status": status, "reason": REASON if status == "True" else "Understood"}
        said |= {"message": why, "lastTransitionTime": time_text(now_s)}
        self._ask(f"condition/{kind.name}/{meta.uid}", partial(_show, kind, meta, said), now_s)

    def _ask(self, what: str, do: Callable[[Api], Any], now_s: float) -> None:
        self._writes.ask(PREFIX + what, do, now_s)


async def _show(kind: Kind[Any], meta: Meta, condition: Mapping[str, str], api: Api) -> None:
    body = {"metadata": {"uid": meta.uid}, "status": {"conditions": [dict(condition)]}}
    # It may be gone, and it may not be the operator's to write on: a node, or a pod where no jobs are.
    with suppress(NotFound, Forbidden):
        await api.patch(kind, meta.name, body, meta.namespace, how=Patch.STRATEGIC, subresource="status")


def _is_shown(conditions: Sequence[Condition]) -> bool:
    return any(one.type == CONDITION and one.status == "True" for one in conditions)


def _cut(text: str) -> str:
    return text if len(text) <= 320 else f"{text[:317]}…"
