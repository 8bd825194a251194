"""Events for people on a UnifiedJob: what `kubectl describe` tells of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, Forbidden, NotFound
from batuta.backends.kube.client.kinds import EVENT
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.operator.pod_job import seconds
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import Span
from batuta.core.job import JobState

BURST: Final = 25
REFILL_S: Final = 60.0
"""A job has so many events at once, then one in so many seconds: one that crashes all day floods nobody."""
_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 200


class News(Enum):
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
    JobState.SUCCEEDED: News.COMPLETED,
    JobState.FAILED: News.FAILED,
    JobState.FAILED_SETUP: News.FAILED,
    JobState.CANCELLED: News.CANCELLED,
}
_WARNINGS: Final = (News.INTERRUPTED, News.NOT_PLACED, News.INVALID, News.FAILED)


class Herald:
    """Tells the news of one job, each once and not too many."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._left = float(BURST)
        self._since_s = 0.0
        self._last: tuple[News, str] | None = None
        self._size = 0
        """Replicas when it ran last; 0 when it has waited since."""

    def tell(self, uj: UnifiedJob, news: News, note: str, now_s: float) -> None:
        """Writes an event, unless the last one said the same or there were too many."""
        if self._last == (news, note) or not self._may(now_s):
            return
        self._last = news, note
        event = event_of(uj, news, note, now_s)
        do = partial(_create, event, uj.metadata.namespace)
        self._site.writes.ask(f"{uj.id}//event/{event['metadata']['name']}", do, now_s)

    def found(self, replicas: int) -> None:
        """So many have places already, as was told before."""
        self._size = replicas

    def started(self, uj: UnifiedJob, run: Run, places: Sequence[Span], now_s: float) -> None:
        """A run has begun, or has another size."""
        before, self._size = self._size, run.target
        replicas = counted(run.target, "replica")
        gpus = counted(run.target * uj.spec.replica_spec.gpus_per_replica, "GPU")
        where = f"{gpus} on {', '.join(dict.fromkeys(place.node for place in places))}"
        if before and before != run.target:
            self.tell(uj, News.RESIZED, f"from {before} to {replicas}, {where}", now_s)
        else:
            self.tell(uj, News.STARTED, f"start {run.start} with {replicas}, {where}", now_s)

    def stopped(self, uj: UnifiedJob, replicas: int, now_s: float) -> None:
        """It waits, and so many gave their places back; 0 where that is no news."""
        self._size = 0
        if replicas:
            news = News.SUSPENDED if uj.spec.suspend else News.PREEMPTED
            gpus = counted(replicas * uj.spec.replica_spec.gpus_per_replica, "GPU")
            self.tell(uj, news, f"gave {gpus} back, and waits", now_s)

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


def counted(n: int, what: str) -> str:
    """A number with its noun: `1 GPU`, `2 GPUs`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def event_of(uj: UnifiedJob, news: News, note: str, now_s: float) -> dict[str, Any]:
    """The event. The same news in the same minute has the same name, so that it is there once."""
    meta, when = uj.metadata, datetime.fromtimestamp(now_s, UTC)
    said = hashlib.sha256(f"{meta.uid} {news.value} {note} {int(now_s // 60)}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": f"{meta.name[:_LONGEST_NAME]}.{said}", "namespace": meta.namespace},
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": names.MANAGED_BY,
        "reportingInstance": names.SCHEDULER,
        "action": news.value,
        "reason": news.value,
        "type": "Warning" if news in _WARNINGS else "Normal",
        "note": note[:_LONGEST_NOTE],
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
    }


async def _create(event: dict[str, Any], namespace: str, api: Api) -> None:
    try:
        await api.create(EVENT, event, namespace)
    except (AlreadyExists, NotFound, Forbidden):
        # It was told already; or the namespace is going, and nobody reads it any more.
        return
