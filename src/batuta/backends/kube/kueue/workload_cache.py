"""The Workloads of jobs, and rate-limited writes to them, each once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.informer import ChangeType
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue.kinds import WORKLOAD, KueueObject
from batuta.backends.kube.kueue.workload import WorkloadRequest, is_same_request, workload_manifest
from batuta.backends.kube.operator.workqueue import Changed, WriteFn, Written

ECHO_S: Final = 10.0
"""So long the API server may take to show what was written, before it is written again."""
PREFIX: Final = "kueue//"
PER_S, BURST = 50.0, 200.0
"""So many writes a second in the long run, and at once: showing jobs must not slow down binding them."""


class _Sent(NamedTuple):
    """What was written last, by its meaning, and when."""

    meaning: Any
    at_s: float


class WriteRate:
    """Lets so many through a second. Told the time by others, so that it can be tested."""

    def __init__(self, per_s: float = PER_S, burst: float = BURST) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = -math.inf

    def may(self, now_s: float) -> bool:
        """Whether one more may go now; if so, it counts."""
        if self._at_s > -math.inf:
            self._left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    @property
    def pause_s(self) -> float:
        """After so long a few more may go."""
        return 5.0 / self._per_s


class WorkloadCache:
    """What the API server shows of Workloads, and what was sent to it."""

    def __init__(self, ask: Callable[[str, WriteFn, float], bool], pace: WriteRate | None = None) -> None:
        self.is_served = False
        """Whether the cluster knows Workloads."""
        self.shown: dict[str, KueueObject] = {}
        """By `namespace/name`."""
        self._kind: Kind[KueueObject] = WORKLOAD
        self._ask = ask
        self._pace = pace or WriteRate()
        self._sent: dict[str, _Sent] = {}
        self._is_late = False

    def take(self, changed: Changed) -> list[str]:
        """The keys of those that have changed."""
        if changed.version:
            self._kind, self.is_served = replace(WORKLOAD, version=changed.version), True
        keys = []
        for change in changed.changes:
            meta = change.object.metadata
            key = f"{meta.namespace}/{meta.name}"
            keys.append(key)
            if change.did is ChangeType.DELETED:
                self.shown.pop(key, None)
                self._forget(key)
            else:
                self.shown[key] = change.object
        return keys

    def heard(self, written: Written) -> None:
        """What did not work is tried again when the writes allow it."""
        if written.error is not None and written.key.startswith(PREFIX):
            self._sent.pop(written.key, None)

    def bring(self, asking: WorkloadRequest, now_s: float) -> KueueObject | None:
        """The Workload of a job once it is there and asks for what the job does; asks for it until then."""
        there = self.shown.get(asking.key)
        if there is not None and is_same_request(there.spec, asking):
            return there
        body = workload_manifest(asking)
        self._send(f"{PREFIX}workload/{asking.key}", body, partial(_apply, self._kind, body), now_s)
        return None

    def patch(self, there: KueueObject, body: Mapping[str, Any], now_s: float) -> None:
        """Changes a part of one that is there: the very one that was looked at."""
        meta = there.metadata
        whole = {**body, "metadata": {**body.get("metadata", {}), "uid": meta.uid}}
        do = partial(_patch, self._kind, meta.name, meta.namespace, whole, "")
        self._send(f"{PREFIX}spec/{meta.namespace}/{meta.name}", whole, do, now_s)

    def patch_status(self, there: KueueObject, status: Mapping[str, Any], meaning: Any, now_s: float) -> None:
        """The same for its status, unless another client has written it meanwhile.

        `meaning` is what stays the same when only times are others.
        """
        meta = there.metadata
        whole = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        do = partial(_patch, self._kind, meta.name, meta.namespace, whole, "status")
        self._send(f"{PREFIX}status/{meta.namespace}/{meta.name}", meaning, do, now_s)

    def delete(self, there: KueueObject, now_s: float) -> None:
        meta = there.metadata
        do = partial(_delete, self._kind, meta.name, meta.namespace, meta.uid)
        self._send(f"{PREFIX}delete/{meta.namespace}/{meta.name}", meta.uid, do, now_s)

    def _send(self, key: str, meaning: Any, do: WriteFn, now_s: float) -> None:
        sent = self._sent.get(key)
        if not self.is_served:
            return
        if sent is not None and sent.meaning == meaning and now_s < sent.at_s + ECHO_S:
            return
        if not self._pace.may(now_s):
            self._is_late = True
        elif self._ask(key, do, now_s):
            self._sent[key] = _Sent(meaning, now_s)

    def _forget(self, key: str) -> None:
        for what in ("workload", "status", "spec", "delete"):
            self._sent.pop(f"{PREFIX}{what}/{key}", None)

    def later_s(self, now_s: float) -> float:
        """When postponed writes may be tried again; never if none was postponed."""
        late, self._is_late = self._is_late, False
        return now_s + self._pace.pause_s if late else math.inf


async def _apply(kind: Kind[KueueObject], body: Mapping[str, Any], api: Api) -> None:
    await api.apply(kind, body, force=True)


async def _patch(
    kind: Kind[KueueObject], name: str, namespace: str, body: Mapping[str, Any], subresource: str, api: Api
) -> None:
    try:
        await api.patch(kind, name, body, namespace, subresource=subresource)
    except NotFound:
        return


async def _delete(kind: Kind[KueueObject], name: str, namespace: str, uid: str, api: Api) -> None:
    try:
        await api.delete(kind, name, namespace, uid=uid)
    except NotFound:
        return
