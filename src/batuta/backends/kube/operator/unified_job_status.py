"""What people see of a UnifiedJob: its status with conditions and training progress, and Kubernetes Events.

Users read the status in `kubectl get`; the next operator continues from it. Progress has Kubeflow Trainer's names.
Events are rate-limited: `kubectl describe` shows them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.crd import time_text
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.jobtypes.status import is_ready
from batuta.backends.kube.objects import Meta, has_condition
from batuta.backends.kube.operator.context import PendingReason, ReconcileContext
from batuta.backends.kube.operator.workqueue import build_event, create_event, patch_status, reference
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, Condition, UnifiedJob
from batuta.backends.kube.unified_job.to_job import pinned_replicas
from batuta.core.cluster import Span
from batuta.core.job import JobState, Progress
from batuta.core.reason import Reason
from batuta.quota.reasons import OF_QUOTA, kueue_name

if TYPE_CHECKING:
    from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler

PROGRESS_KEYS: Final = ("progress", "eta", "trainerStatus")  # the parts of a status that tell of training progress
_LONGEST_S: Final = 10**9
_UNITS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
BACKOFF = (Reason.RESIZE_BACKOFF, Reason.RESTART_BACKOFF)
INVALID = "Invalid"
CANNOT_WRITE = "CannotWrite"
OPERATOR_FAULT = "OperatorFault"
_REWORDED = ("message", "conditions")
_COUNTS = ("replicas", "readyReplicas", "gpus", "restarts", "failures")
_ACTED_ON = ("state", "reason", "nodes", "run", "sizeChoice", *_COUNTS)
REWORD_S = 15.0  # a status is not written sooner than this for other numbers alone, …
REPAIR_S = 5.0  # … nor sooner than this when another client has overwritten it, …
PROGRESS_S = 5.0
"""… nor sooner than this for progress alone: less often if there are many jobs (`LogSubscriptions.show_every_s`)."""
DEADLINE = "DeadlineExceeded"  # what Kubernetes says of a job that has run for too long
BURST: Final = 25
REFILL_S: Final = 60.0  # a job has so many events at once, then one in so many seconds


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


@dataclass(slots=True)
class Outlook:
    """What the World thinks of a job."""

    state: JobState = JobState.PENDING
    reason: Reason | None = None
    message: str = ""
    progress: Progress | None = None
    left_s: float | None = None  # how long it was thought to run on when that was heard
    heard_s: float = 0.0  # when its progress was another one last
    faults: tuple[str, ...] = ()
    cause: str = ""  # why it could not start or change its size when that was tried last; empty since it could
    trouble: str = ""  # why its children cannot be written; empty while they can
    fault: str = ""  # why the operator could not handle it when it tried last
    waiting: PendingReason | None = None  # why the admission gate keeps it out
    end: tuple[JobState, str, float] | None = None
    end_reason: str = ""  # why it was ended, in a word, where it did not end by itself

    def changes(self, state: JobState, reason: Reason, message: str) -> bool:
        """Notes what the World thinks now; whether it thought otherwise before."""
        before = self.state, self.reason, self.message
        self.state, self.reason, self.message = state, reason, message
        return before != (state, reason, message)

    def progresses(self, progress: Progress | None, left_s: float | None, now_s: float) -> bool:
        """Notes how far it is; whether it was elsewhere before. What is left is as of when that was heard."""
        if progress is None or progress == self.progress:
            return False
        self.progress, self.left_s, self.heard_s = progress, left_s, now_s
        return True


@dataclass(slots=True)
class StatusWriter:
    """Writes the status of one job when it has changed, by one write at a time."""

    context: ReconcileContext
    due_s: float = math.inf  # when a sentence with other numbers may be written
    is_shown: bool = False  # whether the object shows what it shall
    _written: dict[str, Any] | None = None
    _written_s: float = 0.0
    _target: int | None = None

    def write(self, run: UnifiedJobReconciler, now_s: float) -> None:
        status = status_of(run, now_s)
        uj = run.uj
        self.due_s = math.inf
        is_shown = self.is_shown = shows(uj, status)
        if status == self._written and not is_shown:
            self.due_s = self._written_s + REPAIR_S
        if self._written is None and is_shown:
            self._written = status  # by the operator before this one
        elif status != self._written and now_s < (may_s := self._may_write_s(status)):
            self.due_s = may_s
        elif status != self._written or now_s >= self.due_s:
            self.due_s = math.inf
            do = partial(patch_status, UNIFIED_JOB, uj.metadata, status)
            if self.context.writes.ask(f"{run.id}//status", do, now_s):
                self._written, self._written_s = status, now_s
        self._write_target(run, now_s)

    def _may_write_s(self, status: dict[str, Any]) -> float:
        """When: news at once; progress, and other numbers in the same sentence, only from time to time."""
        if self._written is None:
            return -math.inf
        is_alike = _truths(self._written) == _truths(status)
        if not is_alike or _without(_REWORDED + PROGRESS_KEYS, self._written, status):
            return -math.inf
        show_s = self._written_s + self.context.listening.show_every_s(PROGRESS_S)
        if _without(_REWORDED, self._written, status):
            return show_s
        return max(show_s, self._written_s + REWORD_S)

    def failed(self, write: str) -> None:
        """What was thought to be written is not."""
        if write == "status":
            self._written = None
        elif write == "target":
            self._target = None

    def _write_target(self, run: UnifiedJobReconciler, now_s: float) -> None:
        """Writes how many replicas the scheduler wants, unless a person has pinned the size."""
        uj, wanted = run.uj, run.replicas
        said = uj.spec.replica_spec.target_replicas
        if run.outlook.end is not None or run.outlook.faults or (said is None and not wanted):
            return
        if pinned_replicas(uj) is not None:
            return
        if wanted not in (said, self._target):
            do = partial(_apply_target, uj.metadata, wanted)
            if self.context.writes.ask(f"{run.id}//target", do, now_s):
                self._target = wanted
        elif said == wanted:
            self._target = None


@dataclass
class EventRecorder:
    """Tells the news of one job, each once and not too many."""

    context: ReconcileContext
    size: int = 0  # replicas when it ran last; 0 when it has waited since
    _left: float = BURST
    _since_s: float = 0.0
    _last: tuple[EventReason, str] | None = None

    def tell(self, uj: UnifiedJob, news: EventReason, note: str, now_s: float) -> None:
        """Writes an event, unless the last one said the same or there were too many."""
        if self._last == (news, note) or not self._may(now_s):
            return
        self._last = news, note
        event = event_of(uj, news, note, now_s)
        self.context.writes.ask(f"{uj.id}//event/{event['metadata']['name']}", partial(create_event, event), now_s)

    def started(self, uj: UnifiedJob, run: Run, places: Sequence[Span], now_s: float) -> None:
        before, self.size = self.size, run.target
        replicas, gpus = counted(run.target, "replica"), _gpus(uj, run.target)
        where = f"on {', '.join(dict.fromkeys(place.node for place in places))}"
        what = f"{replicas}, {gpus} {where}" if gpus else f"{replicas} {where}"
        if before and before != run.target:
            self.tell(uj, EventReason.RESIZED, f"from {before} to {what}", now_s)
        else:
            self.tell(uj, EventReason.STARTED, f"start {run.start} with {what}", now_s)

    def stopped(self, uj: UnifiedJob, replicas: int, now_s: float) -> None:
        """It waits, and so many gave their places back; 0 where that is no news."""
        self.size = 0
        if replicas:
            news = EventReason.SUSPENDED if uj.spec.suspend else EventReason.PREEMPTED
            what = _gpus(uj, replicas) or f"the CPU and memory of {counted(replicas, 'replica')}"
            self.tell(uj, news, f"gave {what} back, and waits", now_s)

    def ended(self, uj: UnifiedJob, state: JobState, detail: str, now_s: float) -> None:
        began_s = read_time(uj.status.start_time) or 0.0
        how_long = f"done {now_s - began_s:.0f} s after its first start" if began_s else "done"
        self.tell(uj, _ENDS[state], detail or how_long, now_s)

    def _may(self, now_s: float) -> bool:
        self._left = min(BURST, self._left + max(0.0, now_s - self._since_s) / REFILL_S)
        self._since_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _without(keys: tuple[str, ...], one: dict[str, Any], other: dict[str, Any]) -> bool:
    return any(one.get(key) != other.get(key) for key in {*one, *other} - {*keys})


def ending_of(uj: UnifiedJob) -> JobState:
    """How a finished job ended, by its conditions: its state is a word for people."""
    if has_condition(uj.raw_status, "Complete"):
        return JobState.SUCCEEDED
    return JobState.CANCELLED if uj.status.state == JobState.CANCELLED.value else JobState.FAILED


def shows(uj: UnifiedJob, status: dict[str, Any]) -> bool:
    """Whether the object has this status, in the fields that programs act on."""
    shown = uj.raw_status if isinstance(uj.raw_status, dict) else {}
    placement = {node: n for node, n in status["placement"].items() if n is not None}
    return (
        all(shown.get(key) == status.get(key) for key in _ACTED_ON if key in status)
        and (shown.get("placement") or {}) == placement
        and _truths(shown) == _truths(status)
    )


def _truths(status: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the conditions of a status say, without their sentences and times."""
    listed = status.get("conditions")
    listed = listed if isinstance(listed, list) else ()
    return [(one.get("type"), one.get("status"), one.get("reason")) for one in listed if isinstance(one, dict)]


def status_of(run: UnifiedJobReconciler, now_s: float) -> dict[str, Any]:
    uj, outlook = run.uj, run.outlook
    before = uj.status
    pods = run.live_pods()
    state, message, reason = _state(run)
    placement: dict[str, int] = {}
    for pod in pods:
        if pod.spec.node_name:
            placement[pod.spec.node_name] = placement.get(pod.spec.node_name, 0) + 1
    status: dict[str, Any] = {
        "observedGeneration": uj.metadata.generation,
        "state": state.value,
        "reason": reason,
        "message": message,
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "gpus": sum(placement.values()) * uj.spec.replica_spec.gpus_per_replica,
        # A merge patch keeps what it does not name: nodes that are left are named with nothing.
        "placement": {**dict.fromkeys(before.placement), **placement},
        "nodes": ",".join(sorted(placement)),
        # Not what the World counts: to it, a resize in place is another start as well.
        "restarts": max(before.restarts, 0 if run.run is None else run.run.start),
        "failures": run.failures,
        "selector": f"{names.JOB_NAME}={uj.metadata.name}",
        "conditions": _conditions(run, state, reason, message, now_s),
        "startTime": before.start_time or (time_text(now_s) if run.has_started else None),
    }
    if run.run is not None:
        status["run"] = {
            "start": run.run.start,
            "firstReplicas": run.run.first_of(),
            "maxReplicas": run.run.ceiling_of(uj),
        }
    if (choice := run.size_choice) is not None:
        status["sizeChoice"] = {
            "gpus": choice.gpus,
            "fastestGpus": choice.best_gpus,
            "speedPercentage": round(100 * choice.speed_share),
            "measuredJobs": choice.jobs,
            "message": choice.sentence,
        }
    elif before.size_choice is not None:
        status["sizeChoice"] = None  # its user has said a size since
    if outlook.end is not None:
        status["completionTime"] = before.completion_time or time_text(outlook.end[2])
    if run.result is not None:
        status["result"] = run.result
    left_s = outlook.left_s if state is JobState.RUNNING else None
    status.update(trainer_status(outlook.progress, left_s, outlook.heard_s))
    return status


def _state(run: UnifiedJobReconciler) -> tuple[JobState, str, str]:
    outlook = run.outlook
    if outlook.end is not None:
        state, detail, _ = outlook.end
        return state, detail, outlook.end_reason or state.value.title().replace("_", "")
    if outlook.fault:
        return outlook.state, outlook.fault, OPERATOR_FAULT
    if outlook.faults:
        return JobState.PENDING, "; ".join(outlook.faults), INVALID
    if outlook.waiting is not None and not run.replicas:
        return outlook.state, outlook.waiting.message, outlook.waiting.reason
    if outlook.trouble and not run.has_started:
        return outlook.state, outlook.trouble, CANNOT_WRITE
    reason = "" if outlook.reason is None else outlook.reason.name.title().replace("_", "")
    said = f"{outlook.message}: {outlook.cause}" if outlook.cause and outlook.reason in BACKOFF else outlook.message
    return outlook.state, said, reason


def _conditions(
    run: UnifiedJobReconciler, state: JobState, reason: str, message: str, now_s: float
) -> list[dict[str, Any]]:
    outlook = run.outlook
    has_places = bool(run.replicas)
    over = outlook.end is not None
    truths = {
        "QuotaReserved": has_places or (outlook.reason is not None and outlook.reason not in OF_QUOTA),
        "Admitted": has_places or over,
        "PodsReady": run.has_started,
        "Resizing": state is JobState.RESIZING,
        "Complete": state is JobState.SUCCEEDED,
        "Failed": over and state is not JobState.SUCCEEDED,
    }
    if outlook.faults or (outlook.waiting is not None and not has_places):
        truths["QuotaReserved"] = False
    reasons = dict.fromkeys(truths, reason)
    if not truths["QuotaReserved"] and outlook.reason in OF_QUOTA and not outlook.waiting:
        reasons["QuotaReserved"] = kueue_name(outlook.reason)  # which other tools know
    return build_conditions(run.uj.metadata.generation, run.uj.status.conditions, truths, reasons, message, now_s)


def build_conditions(
    generation: int,
    before: Iterable[Condition],
    truths: Mapping[str, bool],
    reasons: Mapping[str, str],
    message: str,
    now_s: float,
) -> list[dict[str, Any]]:
    """The conditions of an object that had others before; one that is as it was keeps its time."""
    now, since = time_text(now_s), {(one.type, one.status): one.last_transition_time for one in before}
    return [
        {
            "type": kind,
            "status": str(truth),
            "reason": reasons[kind] or "Unknown",
            "message": message[:1024],
            "lastTransitionTime": since.get((kind, str(truth)), now),
            "observedGeneration": generation,
        }
        for kind, truth in truths.items()
    ]


async def _apply_target(meta: Meta, target: int, api: Api) -> None:
    """Not by force: a size that a person has written since we looked is respected."""
    metadata = {"name": meta.name, "namespace": meta.namespace, "annotations": {names.TARGET: str(target)}}
    await api.apply(UNIFIED_JOB, {"metadata": metadata, "spec": {"replicaSpec": {"targetReplicas": target}}})


def trainer_status(progress: Progress | None, left_s: float | None, heard_s: float) -> dict[str, Any]:
    """What is to be written of progress that was heard at a time, when so much was left."""
    if progress is None:
        return {}
    numbers = {
        "loss": progress.loss,
        "samples_per_second": progress.samples_per_s,
        "step": progress.step,
        "epoch": progress.epoch,
    }
    percent = None if progress.fraction is None else math.floor(100 * progress.fraction)
    if percent is None:
        left_s = None  # unknown for a job that does not report its length
    return {
        # A merge patch keeps what it does not name: what is not known any more is named with nothing.
        "progress": None if percent is None else f"{percent}%",
        "eta": None if left_s is None else short_time(left_s),
        "trainerStatus": {
            "progressPercentage": percent,
            "estimatedRemainingSeconds": None if left_s is None else math.ceil(left_s),
            "metrics": [{"name": name, "value": str(value)} for name, value in numbers.items() if value is not None],
            "lastUpdatedTime": time_text(heard_s),
        },
    }


def short_time(duration_s: float) -> str:
    """A time span in two units at most, as kubectl writes ages: 45s, 12m30s, 3h5m, 2d4h."""
    whole = min(math.ceil(duration_s), _LONGEST_S)
    for size, name, part, part_name in _UNITS:
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{name}{rest}{part_name}" if rest else f"{whole // size}{name}"
    return f"{whole}s"


def _gpus(uj: UnifiedJob, replicas: int) -> str:
    """The GPUs of so many replicas; empty for a CPU-only job."""
    each = uj.spec.replica_spec.gpus_per_replica
    return counted(replicas * each, "GPU") if each else ""


def counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def event_of(uj: UnifiedJob, news: EventReason, note: str, now_s: float) -> dict[str, Any]:
    about, said = reference(UNIFIED_JOB, uj.metadata), f"{news.value} {note}"
    return build_event(about, news.value, note, now_s, "Warning" if news in _WARNINGS else "Normal", said=said)
