"""A job as a Kueue Workload, as pure functions: the pods that it requests, its admission, and its status."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.jobtypes.pod_template import LAUNCHER, WORKER, pod_template
from batuta.backends.kube.jobtypes.writes import holds
from batuta.backends.kube.kueue.kinds import ConditionUpdate, KueueObject, find, is_true
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import cluster
from batuta.core.job import Job, JobState
from batuta.core.plan import Decision
from batuta.core.world import World
from batuta.quota.reasons import Reserved, quota_reserved
from batuta.quota.workload import demand
from batuta.spec.quantity import show_milli

MAIN: Final = "main"
JOB_UID: Final = "kueue.x-k8s.io/job-uid"  # label: whose Workload it is
_LONGEST_NAME: Final = 240
_WITH_LAUNCHER: Final = ("ElasticHorovod", "MPIJob")
_OF_POD: Final = (
    *("nodeSelector", "affinity", "tolerations", "overhead", "runtimeClassName", "priorityClassName"),
    *("restartPolicy", "resources"),
)
_OF_CONTAINER: Final = ("name", "image", "resources", "restartPolicy")
RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
REQUEUED: Final = "Requeued"
WITHOUT_QUOTA = "WithoutQuota"  # why a job has no quota though it runs, or is about to: no queue is set up for it
_RUNS = (JobState.RUNNING, JobState.RESIZING)


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """What a job asks Kueue for."""

    owner: objects.OwnerReference
    namespace: str
    queue: str
    priority: int
    pod_sets: tuple[dict[str, Any], ...]
    is_wanted: bool = True  # False while its user does not want it to run

    @property
    def name(self) -> str:
        return workload_name(self.owner)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def owner_reference(api_version: str, kind: str, meta: objects.Meta) -> objects.OwnerReference:
    return objects.OwnerReference(api_version=api_version, kind=kind, name=meta.name, uid=meta.uid, controller=True)


def workload_name(owner: objects.OwnerReference) -> str:
    """Of the Workload of an object. Another object of the same name has another one."""
    digest = hashlib.sha256(owner.uid.encode()).hexdigest()[:5]
    return f"{owner.kind.lower()}-{owner.name}"[:_LONGEST_NAME].rstrip("-.") + f"-{digest}"


def workload_manifest(asking: WorkloadRequest) -> dict[str, Any]:
    """The Workload, for a server-side apply. Who made it inactive is not asked here."""
    owner = asking.owner
    return {
        "metadata": {
            "name": asking.name,
            "namespace": asking.namespace,
            "labels": {JOB_UID: owner.uid},
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": {"queueName": asking.queue, "priority": asking.priority, "podSets": list(asking.pod_sets)},
    }


def is_same_request(spec: dict[str, Any], asking: WorkloadRequest) -> bool:
    """Whether a Workload that is there asks for this, however the API server has completed it."""
    is_same = (spec.get("queueName"), spec.get("priority")) == (asking.queue, asking.priority)
    return is_same and same_pods(spec, asking.pod_sets)


def same_pods(spec: dict[str, Any], pod_sets: Sequence[dict[str, Any]]) -> bool:
    return holds(spec.get("podSets"), list(pod_sets))


def request_of_unified_job(uj: UnifiedJob, job: Job, is_wanted: bool = True) -> WorkloadRequest:
    """As many replicas as it can use; with fewer it is content, down to its smallest size."""
    meta = uj.metadata
    least, most = job.min // job.replica_size, job.max // job.replica_size
    main: dict[str, Any] = {"name": MAIN, "count": most, "template": _template(uj, WORKER)}
    if least < most:
        main["minCount"] = least
    pod_sets = [main]
    if uj.spec.job_type in _WITH_LAUNCHER:
        pod_sets.append({"name": LAUNCHER, "count": 1, "template": _template(uj, LAUNCHER)})
    owner = owner_reference(names.API_VERSION, names.KIND, meta)
    return WorkloadRequest(owner, meta.namespace, job.queue, job.priority, tuple(pod_sets), is_wanted)


def _template(uj: UnifiedJob, role: str) -> dict[str, Any]:
    return {"spec": _slim(pod_template(uj, Run(0), role, {})["spec"])}


def _slim(spec: dict[str, Any]) -> dict[str, Any]:
    """What quota depends on: programs, volumes and secrets of a pod are left out."""
    found = {key: spec[key] for key in _OF_POD if spec.get(key)}
    for key in ("containers", "initContainers"):
        if spec.get(key):
            found[key] = [{word: one[word] for word in _OF_CONTAINER if one.get(word)} for one in spec[key]]
    return found


def request_of_gang(owner: objects.OwnerReference, pod: objects.Pod, job: Job) -> WorkloadRequest:
    main = {"name": MAIN, "count": job.replicas, "template": {"spec": _slim(msgspec.to_builtins(pod.spec))}}
    return WorkloadRequest(owner, pod.metadata.namespace, job.queue, job.priority, (main,))


@dataclass(frozen=True, slots=True)
class AdmittedResources:
    """So many replicas, in these flavors."""

    replicas: int
    flavors: tuple[str, ...] = ()


def read_admission(workload: KueueObject) -> AdmittedResources | None:
    """What Kueue gives; None while it has not decided, and when it wants it back."""
    status = workload.status
    if not is_true(status, ADMITTED) or workload.spec.get("active") is False:
        return None
    if is_true(status, EVICTED) or is_true(status, FINISHED):
        return None
    assigned = _assigned(status)
    count = assigned.get("count")
    if not isinstance(count, int):
        return None
    flavors = assigned.get("flavors")
    named = flavors.values() if isinstance(flavors, Mapping) else ()
    return AdmittedResources(count, tuple(sorted({str(one) for one in named})))


def _assigned(status: Mapping[str, Any]) -> Mapping[str, Any]:
    admission = status.get("admission")
    listed = admission.get("podSetAssignments") if isinstance(admission, Mapping) else None
    found = (one for one in listed or () if isinstance(one, Mapping) and one.get("name") == MAIN)
    return next(found, {})


def pending_reason(workload: KueueObject | None) -> tuple[str, str]:
    """Why a job is not admitted, as Kueue says it: a word and a sentence."""
    if workload is None:
        return "WaitingForKueue", "its Workload is being made"
    status = workload.status
    for kind, meant in ((EVICTED, "True"), (RESERVED, "False"), (ADMITTED, "False")):
        said = find(status, kind)
        if said.get("status") == meant:
            return str(said.get("reason") or "Pending"), f"Kueue: {said.get('message') or 'it waits'}"
    return "WaitingForKueue", "Kueue has not looked at its Workload yet"


def within(job: Job, given: AdmittedResources, flavors: Iterable[Mapping[str, Any]]) -> Job | None:
    """The job with what was given to it: its size, the nodes of its flavors. None if that is too little."""
    most = given.replicas * job.replica_size
    sizes = None if job.sizes is None else tuple(size for size in job.sizes if size <= most)
    top = min(job.max, most) if sizes is None else max(sizes, default=0)
    if top < job.min:
        return None
    size = min(job.size, top) if sizes is None else max(one for one in sizes if one <= max(job.size, job.min))
    labels, tolerated = dict(job.node_labels), list(job.tolerations)
    for flavor in flavors:
        labels |= {str(key): str(value) for key, value in (flavor.get("nodeLabels") or {}).items()}
        tolerated += [toleration(one) for one in flavor.get("tolerations") or ()]
    accepted = tuple(dict.fromkeys(tolerated))
    return replace(job, max=top, size=size, sizes=sizes, node_labels=tuple(labels.items()), tolerations=accepted)


def toleration(one: Mapping[str, Any]) -> str:
    key = str(one.get("key") or cluster.EVERYTHING)
    said = key if one.get("operator") == "Exists" else f"{key}={one.get('value') or ''}"
    return f"{said}:{one['effect']}" if one.get("effect") else said


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """What the World says of a living job."""

    job: Job
    state: JobState
    gpus: int  # that it has; of a CPU-only job its replicas
    reserved: Reserved
    cluster_queue: str = ""
    flavors: tuple[tuple[str, str], ...] = ()

    @property
    def has_quota(self) -> bool:
        return bool(self.gpus and self.cluster_queue)

    def admission(self, pod_sets: tuple[str, ...]) -> dict[str, Any] | None:
        """What it has of which flavor; None while it has nothing, or no queue gives it anything."""
        if not self.has_quota:
            return None
        job = self.job
        main = {
            "name": MAIN,
            "count": self.gpus // job.replica_size,
            "flavors": dict(self.flavors),
            "resourceUsage": {resource: amount(job, resource, self.gpus) for resource, _ in self.flavors},
        }
        others = [{"name": name, "count": 1} for name in pod_sets if name != MAIN]
        return {"clusterQueue": self.cluster_queue, "podSetAssignments": [main, *others]}

    def statements(self, before: Mapping[str, Any]) -> Iterator[ConditionUpdate]:
        """Its conditions. `before` is the status that the Workload has."""
        has, said = self.has_quota, self.reserved
        if has:
            message = f"Quota reserved in ClusterQueue {self.cluster_queue}"
            yield ConditionUpdate(RESERVED, True, said.reason, message)
            yield ConditionUpdate(ADMITTED, True, "Admitted", message)
        else:
            # Never true without an admission beside it: that a Kueue could not bear.
            yield ConditionUpdate(RESERVED, False, WITHOUT_QUOTA if said.status else said.reason, said.message)
            yield ConditionUpdate(ADMITTED, False, "NoReservation", "The workload has no reservation")
        yield ConditionUpdate("PodsReady", self.state in _RUNS, "Started" if self.state in _RUNS else "WaitForStart")
        if self.state is JobState.PREEMPTED:
            yield ConditionUpdate(EVICTED, True, "Preempted", said.message)
            yield ConditionUpdate(REQUEUED, True, "Preempted", said.message)
        elif has and is_true(before, EVICTED):
            was = find(before, EVICTED).get("message") or ""
            yield ConditionUpdate(EVICTED, False, "QuotaReserved", f"Previously: {was}")


def workload_state(world: World, row: int, decision: Decision | None) -> WorkloadState:
    job = world.jobs.jobs[row]
    gpus = int(world.jobs.held[row])
    way = world.quota.way(job.namespace, job.queue)
    return WorkloadState(
        job,
        world.state_of(row),
        gpus,
        quota_reserved(gpus > 0, decision),
        "" if way is None else way.cluster_queue,
        world.flavors.get(job.id, ()),
    )


def amount(job: Job, resource: str, gpus: int) -> str:
    return show_milli(demand(job, resource, gpus), is_bytes=resource == "memory")
