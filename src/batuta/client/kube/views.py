"""UnifiedJobs and nodes of a cluster as the API types that the command line shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from batuta.apitypes import resources as a
from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.binder.requests import pod_requests
from batuta.backends.kube.bounded_text import read_decimal, read_gpus, read_time, read_whole
from batuta.backends.kube.health.annotations import ComponentHealth, read_node_health
from batuta.backends.kube.health.taints import cordoned_by, cordoned_s
from batuta.backends.kube.operator.nodes import ill_cards, is_open, is_unhealthy, read_node
from batuta.backends.kube.unified_job.from_task import lead_pod
from batuta.backends.kube.unified_job.model import MOST_REPLICAS, SizeChoiceStatus, TrainerStatus, UnifiedJob
from batuta.backends.kube.unified_job.to_job import node_requirements, parse_quantity, pinned_replicas
from batuta.backends.kube.unified_job.to_job import pod_requests as template_requests
from batuta.client.errors import AnswerError, ApiError
from batuta.core.health_record import WHOLE_NODE
from batuta.spec.skypilot_keys import endpoints

UNSEEN = "no operator has looked at it yet"
_MIB = 2**20


def job_view(uj: UnifiedJob, now_s: float, pods: Iterable[objects.Pod] = (), priority: int = 0) -> a.Job:
    """Return a UnifiedJob as the API type. `pods` show which GPUs it has."""
    meta, status = uj.metadata, uj.status
    submitted_s, started_s = read_time(meta.creation_timestamp), read_time(status.start_time)
    ended_s = read_time(status.completion_time)
    state = status.state or "PENDING"
    over = state in a.FINAL_STATES
    until_s = ended_s if over and ended_s is not None else now_s
    reason = a.ReasonGiven(status.reason, status.message) if status.state else a.ReasonGiven("Unseen", UNSEEN)
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
        cpu=_cpu(uj),
        placement=_placement(uj, pods),
        progress=_progress(status.trainer_status),
        eta_s=_eta_s(status.trainer_status, now_s),
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s if over else None,
        duration_s=None if started_s is None else max(0.0, until_s - started_s),
        waited_s=None if submitted_s is None else max(0.0, (started_s or until_s) - submitted_s),
        restarts=status.restarts,
        detail=status.message if over else "",
        reason=None if over else reason,
        size_choice=_size_choice(status.size_choice),
        endpoints=_endpoints(uj),
    )


def result_of(uj: UnifiedJob) -> Any:
    """What its script gave to `batuta.sdk.result`, or an ApiError (404)."""
    if uj.status.result is None:
        raise ApiError(404, f"job {uj.id} has not given a result")
    try:
        return json.loads(uj.status.result)
    except ValueError:
        raise AnswerError(f"the result of job {uj.id} is no JSON: it was not written by the SDK") from None


def wish_of(uj: UnifiedJob) -> str:
    if uj.metadata.annotations.get(names.CANCEL, "") not in ("", "false"):
        return "cancel"
    return "park" if uj.spec.suspend or pinned_replicas(uj) == 0 else "run"


def _size_choice(chosen: SizeChoiceStatus | None) -> a.SizeChoice | None:
    if chosen is None:
        return None
    share = chosen.speed_percentage / 100
    return a.SizeChoice(chosen.gpus, chosen.fastest_gpus, share, chosen.measured_jobs, chosen.message)


def _gpus(uj: UnifiedJob) -> a.Gpus:
    replicas, each = uj.spec.replica_spec, uj.spec.replica_spec.gpus_per_replica
    asked = read_whole(uj.metadata.annotations.get(names.WANTED), most=MOST_REPLICAS)
    wanted = replicas.min_replicas if asked is None else asked
    pinned = pinned_replicas(uj)
    template = replicas.template.get("spec")
    types = node_requirements(template if isinstance(template, dict) else {}).gpu_types
    return a.Gpus(
        now=uj.status.gpus,
        wanted=(pinned or wanted) * each,
        min=(pinned or replicas.min_replicas) * each,
        max=(pinned or replicas.largest) * each,
        per_node=each,
        type=" or ".join(types) or None,
        share=_job_share(uj),
    )


def _cpu(uj: UnifiedJob) -> a.Cpu | None:
    """What a CPU-only job has and asks for; None for one with GPUs."""
    replicas = uj.spec.replica_spec
    if not replicas.cpu_only:
        return None
    template = replicas.template.get("spec")
    asked = template_requests(template if isinstance(template, dict) else {}).amounts
    return a.Cpu(
        replicas=replicas.min_replicas,
        now=sum(uj.status.placement.values()),
        cpus=asked.get("cpu", 0) / 1000,
        memory_mib=asked.get("memory", 0) // _MIB,
    )


def _endpoints(uj: UnifiedJob) -> tuple[str, ...]:
    """Where the ports that its first container names are reached within the cluster."""
    containers = (uj.spec.replica_spec.template.get("spec") or {}).get("containers") or [{}]
    first = containers[0] if isinstance(containers[0], dict) else {}
    named = [one.get("containerPort") for one in first.get("ports") or () if isinstance(one, dict)]
    ports = sorted({port for port in named if isinstance(port, int)})
    ranges: list[tuple[int, int]] = []
    for port in ports:
        if ranges and ranges[-1][1] == port - 1:
            ranges[-1] = (ranges[-1][0], port)
        else:
            ranges.append((port, port))
    meta = uj.metadata
    pod = lead_pod({"metadata": {"name": meta.name}, "spec": {"jobType": uj.spec.job_type}})
    return tuple(endpoints(f"{pod}.{meta.name}.{meta.namespace}.svc", ranges))


def _job_share(uj: UnifiedJob) -> a.Share | None:
    sharing = uj.spec.sharing
    if sharing is None:
        return None
    memory = parse_quantity(sharing.gpu_memory) if sharing.gpu_memory is not None else None
    return a.Share(int((memory or 0) / _MIB), sharing.gpu_compute or 0)


def _placement(uj: UnifiedJob, pods: Iterable[objects.Pod]) -> tuple[a.Span, ...]:
    """Its nodes; with the pods at hand, also which GPUs of them."""
    found: dict[str, list[int]] = {node: [] for node, count in sorted(uj.status.placement.items()) if count}
    for pod in pods:
        if pod.spec.node_name in found and not is_over(pod):
            found[pod.spec.node_name] += read_gpus(pod.metadata.annotations)
    return tuple(a.Span(node, tuple(sorted(gpus))) for node, gpus in found.items())


def _progress(said: TrainerStatus | None) -> a.ProgressSeen | None:
    if said is None:
        return None
    metrics = {one.name: read_number(one.value) for one in said.metrics}
    step = metrics.get("step")
    percent = said.progress_percentage
    return a.ProgressSeen(
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
    since_s = max(0.0, now_s - (read_time(said.last_updated_time) or now_s))
    return max(0.0, said.estimated_remaining_seconds - since_s)


def read_number(text: Any) -> float | None:
    return read_decimal(str(text))


def node_views(
    nodes: Iterable[objects.Node], pods: Iterable[objects.Pod], gpu_resources: Sequence[str] = names.GPU_RESOURCES
) -> tuple[a.Node, ...]:
    guests: dict[str, list[objects.Pod]] = {}
    for pod in pods:
        if pod.spec.node_name and not is_over(pod):
            guests.setdefault(pod.spec.node_name, []).append(pod)
    views = [node_view(node, guests.get(node.metadata.name, []), gpu_resources) for node in nodes]
    return tuple(sorted((view for view in views if view is not None), key=lambda view: view.name))


def node_view(
    node: objects.Node, pods: Sequence[objects.Pod], gpu_resources: Sequence[str] = names.GPU_RESOURCES
) -> a.Node | None:
    """One node with the pods that are on it; None when it has no GPUs."""
    known = read_node(node, None, gpu_resources)
    if known is None or not known.gpus:
        return None
    by = cordoned_by(node)
    shown, ill = read_node_health(node.metadata.annotations).by_gpu(), ill_cards(node)
    return a.Node(
        name=known.name,
        state=_node_state(node),
        gpu_type=known.gpu_type,
        gpu_memory_mib=known.gpu_memory_mib,
        rack=known.rack,
        labels=dict(node.metadata.labels),
        address=next((one.address for one in node.status.addresses if one.type == "InternalIP"), ""),
        gpus=tuple(
            a.Gpu(index, index not in ill, tuple(tenants), health=_health(shown.get(index)))
            for index, tenants in enumerate(_tenants(known.gpus, pods, gpu_resources))
        ),
        cordoned_by=by,
        cordoned_s=cordoned_s(node) or None if by else None,
        health=_health(shown.get(WHOLE_NODE)),
    )


def _health(shown: ComponentHealth | None) -> a.HealthShown | None:
    return None if shown is None else a.HealthShown(**msgspec.structs.asdict(shown))


def _node_state(node: objects.Node) -> str:
    if is_open(node):
        return "ready"
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), "True")
    if ready != "True":
        return "lost"
    return "cordoned" if cordoned_by(node) else "unhealthy" if is_unhealthy(node) else "cordoned"


def _tenants(count: int, pods: Sequence[objects.Pod], gpu_resources: Sequence[str]) -> list[list[a.GpuTenant]]:
    """Who is on each GPU. Pods that were given none by number get the first that are left."""
    found: list[list[a.GpuTenant]] = [[] for _ in range(count)]
    unnamed: list[tuple[a.GpuTenant, int]] = []
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        asked = pod_requests(pod)
        share = _pod_share(asked)
        tenant, whole = a.GpuTenant(owner_of(pod), share), sum(asked.get(name, 0) for name in gpu_resources)
        given = [index for index in read_gpus(pod.metadata.annotations) if index < count]
        if (whole or share) and given:
            for index in given:
                found[index].append(tenant)
        elif whole:
            unnamed.append((tenant, whole))
    free = iter([index for index in range(count) if not found[index]])
    for tenant, whole in unnamed:
        for _, index in zip(range(whole), free, strict=False):
            found[index].append(tenant)
    return found


def _pod_share(asked: dict[str, int]) -> a.Share | None:
    units, compute = asked.get(names.SHARE_MEMORY, 0), asked.get(names.SHARE_COMPUTE, 0)
    return a.Share(units * names.SHARE_UNIT_MIB, compute) if units or compute else None


def owner_of(pod: objects.Pod) -> str:
    """The UnifiedJob of a pod, or the pod itself, as `namespace/name`."""
    meta = pod.metadata
    return f"{meta.namespace}/{meta.labels.get(names.JOB_NAME) or meta.name}"
