"""UnifiedJobs for tests: a sound one, and one with whatever a test wants otherwise."""

import copy
from typing import Any

import msgspec

from batuta.backends.kube.unified_job.model import UnifiedJob

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "kept"}},
    "spec": {
        "terminationGracePeriodSeconds": 120,
        "securityContext": {"fsGroup": 2000},
        "containers": [
            {
                "name": "main",
                "image": "example.com/train:1",
                "command": ["torchrun", "train.py"],
                "resources": {"requests": {"cpu": 8, "memory": "32Gi"}},
                "env": [{"name": "MODEL", "value": "13b"}, {"name": "WORLD_SIZE", "value": "99"}],
            }
        ],
    },
}


def manifest(
    name: str = "resnet",
    namespace: str = "team-a",
    job_type: str = "TorchElastic",
    replicas: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A job of 1 to 8 replicas with one GPU each. `pod` changes its pod, `replicas` its replicaSpec."""
    template = copy.deepcopy(TEMPLATE)
    template["spec"] |= pod or {}
    sizes: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 8, "template": template, **(replicas or {})}
    return {
        "apiVersion": "batuta.dev/v1alpha1",
        "kind": "UnifiedJob",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"jobType": job_type, "replicaSpec": sizes, **spec},
    }


def read(body: dict[str, Any]) -> UnifiedJob:
    """The job as the watch decodes it."""
    return msgspec.json.decode(msgspec.json.encode(body), type=UnifiedJob)


def unified_job(**changes: Any) -> UnifiedJob:
    """A job that the API server has accepted."""
    body = manifest(**changes)
    body["metadata"] |= {"uid": "11111111-2222", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return read(body)


ON_CPU: dict[str, Any] = {"minReplicas": 2, "maxReplicas": 2, "gpusPerReplica": 0}
"""The replicas of a CPU-only job."""
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"name": "2nd-try"}, "metadata.name: the name becomes part of host names"),
    ({"name": "a.b"}, "metadata.name: the name becomes part of host names"),
    ({"name": "x" * 51}, "metadata.name: the name becomes part of host names"),
    ({"job_type": "Torch"}, "spec.jobType: jobType is one of Job, TorchElastic"),
    ({"replicas": {"minReplicas": 9}}, "spec.replicaSpec.minReplicas: minReplicas must be at most"),
    ({"replicas": {"sizes": [1, 4, 2, 8]}}, "spec.replicaSpec.sizes: sizes must ascend"),
    ({"replicas": {"sizes": [2, 8]}}, "spec.replicaSpec.sizes: sizes must begin with minReplicas"),
    ({"replicas": {"sizes": [1, 4]}}, "spec.replicaSpec.sizes: sizes must begin with minReplicas"),
    ({"replicas": {"targetReplicas": 9}}, "spec.replicaSpec.targetReplicas: targetReplicas must be within"),
    (
        {"replicas": {"sizes": [1, 8], "targetReplicas": 4}},
        "spec.replicaSpec.targetReplicas: targetReplicas must be one of sizes",
    ),
    ({"sharing": {"gpuCompute": 50}}, "spec.sharing: a share is of one GPU"),
    (
        {"replicas": {"gpusPerReplica": 0, "maxReplicas": 1}, "sharing": {"gpuCompute": 50}},
        "spec.sharing: a share is of one GPU",
    ),
    (
        {"replicas": {"gpusPerReplica": 0}},
        "spec.replicaSpec.gpusPerReplica: a job without GPUs has one size",
    ),
    (
        {"replicas": {"gpusPerReplica": 0, "maxReplicas": 1, "sizes": [1]}},
        "spec.replicaSpec.gpusPerReplica: a job without GPUs has one size",
    ),
    (
        {"replicas": {"gpusPerReplica": 0, "maxReplicas": 1}, "topology": {"numa": "SingleNUMANode"}},
        "spec.topology.numa: numa is about GPUs",
    ),
    ({"replicas": {"maxReplicas": 1}, "sharing": {}}, "spec.sharing: a share needs gpuMemory"),
    (
        {"pod": {"restartPolicy": "OnFailure"}},
        "spec.replicaSpec.template.spec.restartPolicy: restartPolicy must be Never",
    ),
]
"""Jobs that break one rule each, and how they are told."""
