"""The Workloads of jobs, and rate-limited writes to them, each once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.informer import ChangeType, key_of
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.client.transport import RateLimit
from batuta.backends.kube.kueue.kinds import WORKLOAD, ConditionUpdate, KueueObject, is_true, updated
from batuta.backends.kube.kueue.workload import FINISHED, WorkloadRequest, is_same_request, workload_manifest
from batuta.backends.kube.operator.workqueue import AskFn, Changed, WriteFn, Written, delete_object
from batuta.core.job import JobState

ECHO_S: Final = 10.0  # so long the API server may take to show what was written, before it is written again
PREFIX: Final = "kueue//"
PER_S, BURST = 50.0, 200.0
"""So many writes a second in the long run, and at once: showing jobs must not slow down binding them."""


@dataclass(slots=True, eq=False)
class WorkloadCache:
    """What the API server shows of Workloads, and what was sent to it."""

    _ask: AskFn
    _rate: RateLimit = field(default_factory=lambda: RateLimit(PER_S, BURST))
    is_served: bool = False
    shown: dict[str, KueueObject] = field(default_factory=dict)
    _kind: Kind[KueueObject] = WORKLOAD
    _sent: dict[str, tuple[Any, float]] = field(default_factory=dict)  # what was written last, by its meaning, and when
    _is_late: bool = False

    def take(self, changed: Changed) -> list[str]:
        """The keys of those that have changed."""
        if changed.version:
            self._kind, self.is_served = replace(WORKLOAD, version=changed.version), True
        keys = []
        for change in changed.changes:
            key = key_of(change.object.metadata)
            keys.append(key)
            if change.did is ChangeType.DELETED:
                self.shown.pop(key, None)
                for what in ("workload", "status", "spec", "delete"):
                    self._sent.pop(f"{PREFIX}{what}/{key}", None)
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
        do = partial(patch_object, self._kind, meta.name, meta.namespace, whole, "")
        self._send(f"{PREFIX}spec/{meta.namespace}/{meta.name}", whole, do, now_s)

    def patch_status(self, there: KueueObject, status: Mapping[str, Any], meaning: Any, now_s: float) -> None:
        """The same for its status, unless another client has written it meanwhile.

        `meaning` is what stays the same when only times are others.
        """
        meta = there.metadata
        whole = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        do = partial(patch_object, self._kind, meta.name, meta.namespace, whole, "status")
        self._send(f"{PREFIX}status/{meta.namespace}/{meta.name}", meaning, do, now_s)

    def finish(self, there: KueueObject, state: JobState, detail: str, now_s: float) -> bool:
        """Says in the status that the job is over; whether it does already."""
        if is_true(there.status, FINISHED):
            return True
        reason = "Succeeded" if state is JobState.SUCCEEDED else "Failed"
        said = ConditionUpdate(FINISHED, True, reason, detail or f"the job has {reason.lower()}")
        self.patch_status(there, {"conditions": updated(there, (said,), now_s)}, ("finished", reason), now_s)
        return False

    def delete(self, there: KueueObject, now_s: float) -> None:
        meta = there.metadata
        do = partial(delete_object, self._kind, meta)
        self._send(f"{PREFIX}delete/{meta.namespace}/{meta.name}", meta.uid, do, now_s)

    def _send(self, key: str, meaning: Any, do: WriteFn, now_s: float) -> None:
        sent, at_s = self._sent.get(key, (None, -math.inf))
        if not self.is_served or (sent == meaning and now_s < at_s + ECHO_S):
            return
        if not self._rate.may(now_s):
            self._is_late = True
        elif self._ask(key, do, now_s):
            self._sent[key] = meaning, now_s

    def later_s(self, now_s: float) -> float:
        """When postponed writes may be tried again, a few at a time; never if none was postponed."""
        late, self._is_late = self._is_late, False
        return now_s + 5.0 / self._rate.per_s if late else math.inf


async def _apply(kind: Kind[KueueObject], body: Mapping[str, Any], api: Api) -> None:
    await api.apply(kind, body, force=True)


async def patch_object(
    kind: Kind[KueueObject], name: str, namespace: str, body: Mapping[str, Any], subresource: str, api: Api
) -> None:
    with suppress(NotFound):
        await api.patch(kind, name, body, namespace, subresource=subresource)
