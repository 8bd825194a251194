"""A UnifiedJob as the job that people see in `queue` and `status`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cards import gpu_indices
from batuta.backends.kube.binder.tenant import is_over
from batuta.backends.kube.unified_job.model import SizeChoiceStatus, TrainerStatus, UnifiedJob
from batuta.backends.kube.unified_job.node_wishes import node_wishes
from batuta.backends.kube.unified_job.quantity import parse_quantity
from batuta.backends.kube.unified_job.to_job import pinned_replicas
from batuta.client import answers as a
from batuta.client.errors import AnswerError, ApiError

UNSEEN = "no operator has looked at it yet"
_MIB = 2**20


def job_view(uj: UnifiedJob, now_s: float, pods: Iterable[objects.Pod] = (), priority: int = 0) -> a.Job:
    """The job as it was when the API server was asked. `pods` tell which GPUs it has."""
    meta, status = uj.metadata, uj.status
    submitted_s, started_s = seconds(meta.creation_timestamp), seconds(status.start_time)
    ended_s = seconds(status.completion_time)
    state = status.state or "PENDING"
    over = state in a.OVER
    until_s = ended_s if over and ended_s is not None else now_s
    return a.Job(
        id=uj.id,
        name=meta.name,
        user=meta.annotations.get(names.USER, ""),
        queue=uj.spec.queue_name,
        kind=uj.spec.job_type,
        priority=priority,
        state=state,
        wish=wish_of(uj),
        gpus=_gpus(uj),
        placement=_places(uj, pods),
        progress=_progress(status.trainer_status),
        eta_s=_eta_s(status.trainer_status, now_s),
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s if over else None,
        duration_s=None if started_s is None else max(0.0, until_s - started_s),
        waited_s=None if submitted_s is None else max(0.0, (started_s or until_s) - submitted_s),
        restarts=status.restarts,
        detail=status.message if over else "",
        reason=None if over else _reason(uj),
        size_choice=_size_choice(status.size_choice),
    )


def result_of(uj: UnifiedJob) -> Any:
    """What its script gave to `batuta.sdk.result`, or an ApiError (404)."""
    if uj.status.result is None:
        raise ApiError(404, f"job {uj.id} has not given a result")
    try:
        return json.loads(uj.status.result)
    except ValueError:
        raise AnswerError(f"the result of job {uj.id} is no JSON: somebody else has written it") from None


def wish_of(uj: UnifiedJob) -> str:
    """What its user wants to become of it."""
    if uj.metadata.annotations.get(names.CANCEL, "") not in ("", "false"):
        return "cancel"
    return "park" if uj.spec.suspend or pinned_replicas(uj) == 0 else "run"


def seconds(time: str | None) -> float | None:
    """A time of the API server; None where there is none, or none that can be read."""
    try:
        return datetime.fromisoformat(time).timestamp() if time else None
    except ValueError:
        return None


def _reason(uj: UnifiedJob) -> a.Reason:
    status = uj.status
    if not status.state:
        return a.Reason("Unseen", UNSEEN)
    return a.Reason(status.reason, status.message)


def _size_choice(chosen: SizeChoiceStatus | None) -> a.SizeChoice | None:
    if chosen is None:
        return None
    share = chosen.speed_percentage / 100
    return a.SizeChoice(chosen.gpus, chosen.fastest_gpus, share, chosen.measured_jobs, chosen.message)


def _gpus(uj: UnifiedJob) -> a.GpuRequest:
    replicas, each = uj.spec.replica_spec, uj.spec.replica_spec.gpus_per_replica
    asked = uj.metadata.annotations.get(names.WANTED, "")
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else replicas.min_replicas
    pinned = pinned_replicas(uj)
    template = replicas.template.get("spec")
    types = node_wishes(template if isinstance(template, dict) else {}).gpu_types
    return a.GpuRequest(
        now=uj.status.gpus,
        wanted=(pinned or wanted) * each,
        min=(pinned or replicas.min_replicas) * each,
        max=(pinned or replicas.largest) * each,
        per_node=each,
        type=" or ".join(types) or None,
        share=_share(uj),
    )


def _share(uj: UnifiedJob) -> a.Share | None:
    sharing = uj.spec.sharing
    if sharing is None:
        return None
    memory = parse_quantity(sharing.gpu_memory) if sharing.gpu_memory is not None else None
    return a.Share(int((memory or 0) / _MIB), sharing.gpu_compute or 0)


def _places(uj: UnifiedJob, pods: Iterable[objects.Pod]) -> tuple[a.Place, ...]:
    """Its nodes; with the pods at hand, also which GPUs of them."""
    found: dict[str, list[int]] = {node: [] for node, count in sorted(uj.status.placement.items()) if count}
    for pod in pods:
        if pod.spec.node_name in found and not is_over(pod):
            found[pod.spec.node_name] += gpu_indices(pod.metadata.annotations)
    return tuple(a.Place(node, tuple(sorted(gpus))) for node, gpus in found.items())


def _progress(said: TrainerStatus | None) -> a.Progress | None:
    if said is None:
        return None
    metrics = {one.name: _number(one.value) for one in said.metrics}
    step = metrics.get("step")
    percent = said.progress_percentage
    return a.Progress(
        fraction=None if percent is None else percent / 100,
        step=None if step is None else int(step),
        epoch=metrics.get("epoch"),
        loss=metrics.get("loss"),
        samples_per_s=metrics.get("samples_per_second"),
    )


def _eta_s(said: TrainerStatus | None, now_s: float) -> float | None:
    """What is left now, if it goes on as it did when that was last said."""
    if said is None or said.estimated_remaining_seconds is None:
        return None
    since_s = max(0.0, now_s - (seconds(said.last_updated_time) or now_s))
    return max(0.0, said.estimated_remaining_seconds - since_s)


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
