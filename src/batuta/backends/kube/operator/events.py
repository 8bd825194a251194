"""Kubernetes Events on a UnifiedJob, rate-limited: what `kubectl describe` shows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, Forbidden, NotFound
from batuta.backends.kube.client.kinds import EVENT
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.gangs import seconds
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Span
from batuta.core.job import JobState

BURST: Final = 25
REFILL_S: Final = 60.0
"""A job has so many events at once, then one in so many seconds."""
_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 200


class EventReason(Enum):
    """What happened, as the reason of an event."""

    SIZE_CHOSEN = "SizeChosen"
    STARTED = "Started"
    RESIZED = "Resized"
    PREEMPTED = "Preempted"
    SUSPENDED = "Suspended"
    INTERRUPTED = "Interrupted"
    NOT_PLACED = "NotPlaced"
    INVALID = "Invalid"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


_ENDS: Final = {
    JobState.SUCCEEDED: EventReason.COMPLETED,
    JobState.FAILED: EventReason.FAILED,
    JobState.FAILED_SETUP: EventReason.FAILED,
    JobState.CANCELLED: EventReason.CANCELLED,
}
_WARNINGS: Final = (EventReason.INTERRUPTED, EventReason.NOT_PLACED, EventReason.INVALID, EventReason.FAILED)


class EventRecorder:
    """Tells the news of one job, each once and not too many."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._left = float(BURST)
        self._since_s = 0.0
        self._last: tuple[EventReason, str] | None = None
        self._size = 0
        """Replicas when it ran last; 0 when it has waited since."""

    def tell(self, uj: UnifiedJob, news: EventReason, note: str, now_s: float) -> None:
        """Writes an event, unless the last one said the same or there were too many."""
        if self._last == (news, note) or not self._may(now_s):
            return
        self._last = news, note
        event = event_of(uj, news, note, now_s)
        do = partial(create_event, event)
        self._context.writes.ask(f"{uj.id}//event/{event['metadata']['name']}", do, now_s)

    def found(self, replicas: int) -> None:
        """So many have places already, as was told before."""
        self._size = replicas

    def started(self, uj: UnifiedJob, run: Run, places: Sequence[Span], now_s: float) -> None:
        """A run has begun, or has another size."""
        before, self._size = self._size, run.target
        replicas, gpus = counted(run.target, "replica"), _gpus(uj, run.target)
        where = f"on {', '.join(dict.fromkeys(place.node for place in places))}"
        what = f"{replicas}, {gpus} {where}" if gpus else f"{replicas} {where}"
        if before and before != run.target:
            self.tell(uj, EventReason.RESIZED, f"from {before} to {what}", now_s)
        else:
            self.tell(uj, EventReason.STARTED, f"start {run.start} with {what}", now_s)

    def stopped(self, uj: UnifiedJob, replicas: int, now_s: float) -> None:
        """It waits, and so many gave their places back; 0 where that is no news."""
        self._size = 0
        if replicas:
            news = EventReason.SUSPENDED if uj.spec.suspend else EventReason.PREEMPTED
            what = _gpus(uj, replicas) or f"the CPU and memory of {counted(replicas, 'replica')}"
            self.tell(uj, news, f"gave {what} back, and waits", now_s)

    def ended(self, uj: UnifiedJob, state: JobState, detail: str, now_s: float) -> None:
        """It is over."""
        began_s = seconds(uj.status.start_time or "")
        how_long = f"done {now_s - began_s:.0f} s after its first start" if began_s else "done"
        self.tell(uj, _ENDS[state], detail or how_long, now_s)

    def _may(self, now_s: float) -> bool:
        self._left = min(float(BURST), self._left + max(0.0, now_s - self._since_s) / REFILL_S)
        self._since_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _gpus(uj: UnifiedJob, replicas: int) -> str:
    """The GPUs of so many replicas; empty for a CPU-only job."""
    each = uj.spec.replica_spec.gpus_per_replica
    return counted(replicas * each, "GPU") if each else ""


def counted(n: int, what: str) -> str:
    """A number with its noun: `1 GPU`, `2 GPUs`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def event_of(uj: UnifiedJob, news: EventReason, note: str, now_s: float) -> dict[str, Any]:
    """The event of a UnifiedJob."""
    meta = uj.metadata
    about = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
    }
    return build_event(
        about,
        news.value,
        note,
        now_s,
        "Warning" if news in _WARNINGS else "Normal",
        said=f"{news.value} {note}",
    )


def build_event(
    about: Mapping[str, str], reason: str, note: str, now_s: float, kind: str, *, said: str, action: str = ""
) -> dict[str, Any]:
    """The Event about an object. `said` in the same minute has the same name, so that it exists once.

    Objects without a namespace have their events in `default`, as the API server requires.
    """
    when = datetime.fromtimestamp(now_s, UTC)
    digest = hashlib.sha256(f"{about['uid']} {said} {int(now_s // 60)}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {
            "name": f"{about['name'][:_LONGEST_NAME]}.{digest}",
            "namespace": about.get("namespace") or "default",
        },
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": names.MANAGED_BY,
        "reportingInstance": names.SCHEDULER,
        "action": action or reason,
        "reason": reason,
        "type": kind,
        "note": note[:_LONGEST_NOTE],
        "regarding": dict(about),
    }


async def create_event(event: dict[str, Any], api: Api) -> None:
    try:
        await api.create(EVENT, event, event["metadata"]["namespace"])
    except (AlreadyExists, NotFound, Forbidden):
        # The event exists already, or its namespace is being deleted or not the operator's.
        return
