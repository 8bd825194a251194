"""A job as Kueue sees it: a Workload, with the pods that it asks for and nothing else of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.jobtypes.pod_parts import LAUNCHER, WORKER, pod_template
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.job import Job

MAIN: Final = "main"
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""Label: whose Workload it is."""
_LONGEST_NAME: Final = 240
_WITH_LAUNCHER: Final = ("ElasticHorovod", "MPIJob")
_OF_POD: Final = (
    *("nodeSelector", "affinity", "tolerations", "overhead", "runtimeClassName", "priorityClassName"),
    *("restartPolicy", "resources"),
)
_OF_CONTAINER: Final = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class Asking:
    """What a job asks Kueue for."""

    owner: objects.OwnerReference
    namespace: str
    queue: str
    priority: int
    pod_sets: tuple[dict[str, Any], ...]
    is_wanted: bool = True
    """False while its user does not want it to run."""

    @property
    def name(self) -> str:
        return workload_name(self.owner)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def workload_name(owner: objects.OwnerReference) -> str:
    """Of the Workload of an object. Another object of the same name has another one."""
    digest = hashlib.sha256(owner.uid.encode()).hexdigest()[:5]
    return f"{owner.kind.lower()}-{owner.name}"[:_LONGEST_NAME].rstrip("-.") + f"-{digest}"


def body_of(asking: Asking) -> dict[str, Any]:
    """The Workload, for a server-side apply. Who made it inactive is not asked here."""
    owner = asking.owner
    return {
        "metadata": {
            "name": asking.name,
            "namespace": asking.namespace,
            "labels": {JOB_UID: owner.uid},
            "ownerReferences": [
                {
                    "apiVersion": owner.api_version,
                    "kind": owner.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "queueName": asking.queue,
            "priority": asking.priority,
            "podSets": [dict(one) for one in asking.pod_sets],
        },
    }


def asks_the_same(spec: dict[str, Any], asking: Asking) -> bool:
    """Whether a Workload that is there asks for this, however the API server has completed it."""
    return (
        spec.get("queueName") == asking.queue
        and spec.get("priority") == asking.priority
        and same_pods(spec, asking.pod_sets)
    )


def same_pods(spec: dict[str, Any], pod_sets: Sequence[dict[str, Any]]) -> bool:
    return _holds(spec.get("podSets"), list(pod_sets))


def _holds(there: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; what is there beyond it are defaults of the API server."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(_holds(there.get(key), one) for key, one in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(there, list) or len(there) != len(wanted):
            return False
        return all(_holds(one, other) for one, other in zip(there, wanted, strict=True))
    # The API server writes a number where a quantity is one, and we write texts.
    return there == wanted or (there is not None and str(there) == str(wanted))


# ------------------------------------------------------------------------------------ of a UnifiedJob


def asked_by_unified_job(uj: UnifiedJob, job: Job, is_wanted: bool = True) -> Asking:
    """As many replicas as it can use; with fewer it is content, down to its smallest size."""
    meta = uj.metadata
    owner = objects.OwnerReference(
        api_version=names.API_VERSION, kind=names.KIND, name=meta.name, uid=meta.uid, controller=True
    )
    least, most = job.min // job.gpus_per_replica, job.max // job.gpus_per_replica
    main: dict[str, Any] = {"name": MAIN, "count": most, "template": _template(uj, WORKER)}
    if least < most:
        main["minCount"] = least
    pod_sets = [main]
    if uj.spec.job_type in _WITH_LAUNCHER:
        pod_sets.append({"name": LAUNCHER, "count": 1, "template": _template(uj, LAUNCHER)})
    return Asking(owner, meta.namespace, job.queue, job.priority, tuple(pod_sets), is_wanted)


def _template(uj: UnifiedJob, role: str) -> dict[str, Any]:
    return {"spec": _slim(pod_template(uj, Run(0), role, {})["spec"])}


def _slim(spec: dict[str, Any]) -> dict[str, Any]:
    """What quota depends on: programs, volumes and secrets of a pod are nobody's business here."""
    found = {key: spec[key] for key in _OF_POD if spec.get(key)}
    for key in ("containers", "initContainers"):
        if spec.get(key):
            found[key] = [{word: one[word] for word in _OF_CONTAINER if one.get(word)} for one in spec[key]]
    return found


# ------------------------------------------------------------------------------------------ of a gang


def asked_by_gang(owner: objects.OwnerReference, pod: objects.Pod, job: Job) -> Asking:
    """So many pods like this one, all or none."""
    members = job.size // job.gpus_per_replica
    main = {"name": MAIN, "count": members, "template": {"spec": _slim(msgspec.to_builtins(pod.spec))}}
    return Asking(owner, pod.metadata.namespace, job.queue, job.priority, (main,))
