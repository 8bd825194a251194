"""Writes the status of ClusterQueues and LocalQueues where no Kueue does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue.condition import Said, conditions, truths
from batuta.backends.kube.kueue.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, Setting
from batuta.backends.kube.kueue.queue_status import (
    Door,
    cluster_queue_status,
    is_active,
    is_open,
    local_queue_status,
)
from batuta.backends.kube.kueue.quota_objects import QuotaObjects
from batuta.backends.kube.operator.inbox import Changed, Written
from batuta.backends.kube.operator.writes import Doing
from batuta.quota.use import QuotaUse

EVERY_S: Final = 1.0
"""Queues are not looked at more often than this, …"""
SPARING: Final = 20
"""… and no more than this fraction of the time goes into it."""
REPAIR_S: Final = 10.0
"""What somebody else has written over is not written again sooner than this."""
PREFIX: Final = "kueue//queue/"
Place: TypeAlias = tuple[Kind[Setting], str]
Wanted: TypeAlias = tuple[dict[str, Any], Said]

Look: TypeAlias = Callable[[], tuple[QuotaUse, Mapping[Door, Mapping[tuple[str, str], int]]]]
"""What is used now, also by each local queue."""


class QueueDesk:
    """Told when something may be used otherwise; looks from time to time. For the engine's thread."""

    def __init__(self, ask: Callable[[str, Doing, float], bool], objects: QuotaObjects, look: Look) -> None:
        self._ask = ask
        self._objects = objects
        self._look = look
        self._is_stale = False
        self._look_s = -math.inf
        """Not before this."""
        self._kinds: dict[Any, Kind[Setting]] = {}
        """As the cluster has them."""
        self._wanted: dict[Place, Wanted] = {}
        self._written: dict[Place, tuple[Wanted, float]] = {}
        """What was written last, and when."""
        self._is_dirty = False
        self._due_s = math.inf

    def doubt(self) -> None:
        """Something has been decided: more or less may be used now."""
        self._is_stale = True

    def _measure(self) -> None:
        queues, doors = self._kinds.get(CLUSTER_QUEUE), self._kinds.get(LOCAL_QUEUE)
        if queues is None or doors is None:
            return
        use, used = self._look()
        wanted: dict[Place, Wanted] = {}
        for queue in use.queues:
            wanted[queues, f"/{queue.queue.name}"] = cluster_queue_status(queue), is_active(queue)
            for one in queue.doors:
                door = one.door
                said = is_open(door, queue)
                status = local_queue_status(
                    one, queue, used.get((door.namespace, door.name), {}), doors.version
                )
                wanted[doors, f"{door.namespace}/{door.name}"] = status, said
        self._is_dirty = self._is_dirty or wanted != self._wanted
        self._wanted = wanted

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind in (CLUSTER_QUEUE, LOCAL_QUEUE):
            self._is_dirty = True
            if changed.version:
                self._kinds[changed.kind] = replace(changed.kind, version=changed.version)

    def heard(self, written: Written, now_s: float) -> None:
        if written.key.startswith(PREFIX):
            self._is_dirty = True
            if written.error is not None:
                self._written.clear()

    def next_s(self) -> float:
        return min(self._due_s, self._look_s if self._is_stale else math.inf)

    def drive(self, now_s: float) -> None:
        if self._is_stale and now_s >= self._look_s:
            self._is_stale, began_s = False, time.perf_counter()
            self._measure()
            self._look_s = now_s + max(EVERY_S, SPARING * (time.perf_counter() - began_s))
        if self._is_dirty or now_s >= self._due_s:
            self._is_dirty, self._due_s = False, math.inf
            for place, wanted in self._wanted.items():
                if not self._is_shown(place, *wanted):
                    self._write(place, wanted, now_s)

    def _there(self, place: Place) -> Setting | None:
        kind, key = place
        return self._objects.all_of(CLUSTER_QUEUE if not kind.namespaced else LOCAL_QUEUE).get(key)

    def _is_shown(self, place: Place, status: Mapping[str, Any], said: Said) -> bool:
        there = self._there(place)
        if there is None:
            return True
        mine = ("Active", "True" if said.is_true else "False", said.reason)
        return mine in truths(there.status.get("conditions")) and all(
            (there.status.get(key) or _nothing(value)) == value for key, value in status.items()
        )

    def _write(self, place: Place, wanted: Wanted, now_s: float) -> None:
        there, (status, said) = self._there(place), wanted
        assert there is not None
        before, at_s = self._written.get(place, (None, -math.inf))
        if before == wanted and now_s < at_s + REPAIR_S:
            self._due_s = min(self._due_s, at_s + REPAIR_S)
            return
        meta, kind = there.metadata, place[0]
        listed = conditions((said,), there.status.get("conditions") or [], meta.generation, now_s)
        do = partial(_patch, kind, meta.name, meta.namespace, {**status, "conditions": listed})
        if self._ask(f"{PREFIX}{kind.plural}/{place[1]}", do, now_s):
            self._written[place] = wanted, now_s
        else:
            self._due_s = min(self._due_s, now_s + EVERY_S)


def _nothing(value: Any) -> Any:
    """What the API server leaves out of a status that has it."""
    return 0 if isinstance(value, int) else []


async def _patch(kind: Kind[Setting], name: str, namespace: str, status: Mapping[str, Any], api: Api) -> None:
    try:
        await api.patch_status(kind, name, status, namespace)
    except NotFound:
        return
