"""One size of a trial as a UnifiedJob: the job that is tried out, rigid, and never started over."""

from __future__ import annotations

import copy
import hashlib
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.trial.model import TrialRun
from batuta.backends.kube.unified_job.model import LONGEST_NAME, UnifiedJob
from batuta.core.job import Job
from batuta.engine.trials.run import GRACE_S, MARK

_ELASTIC: Final = ("sizes", "targetReplicas")
_AFTERWARDS: Final = ("suspend", "ttlSecondsAfterFinished")
_OWN: Final = (
    names.TARGET,
    names.CANCEL,
    names.WANTED,
    names.TRIAL_SIZES,
    names.TRIAL_BUDGET,
    names.TRIAL_EACH,
)
_FOREIGN: Final = "kubectl.kubernetes.io/"


def run_name(trial: str, gpus: int) -> str:
    """The name of the UnifiedJob at a size: the same again after a restart, so that none is made twice."""
    tail = f"-t{gpus}"
    if len(trial) + len(tail) > LONGEST_NAME:
        mark = hashlib.sha256(trial.encode()).hexdigest()[:6]
        trial = f"{trial[: LONGEST_NAME - len(tail) - 7].rstrip('-')}-{mark}"
    return f"{trial}{tail}"


def run_manifest(trial: TrialRun, uj: UnifiedJob, job: Job, gpus: int) -> dict[str, Any]:
    """What is written for one size of a trial of a UnifiedJob, which is `job` to the scheduler."""
    meta = trial.metadata
    annotations = {
        key: value
        for key, value in uj.metadata.annotations.items()
        if key not in _OWN and not key.startswith(_FOREIGN)
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": run_name(meta.name, gpus),
            "namespace": meta.namespace,
            "labels": {
                **uj.metadata.labels,
                names.APPLICATION: job.application,
                names.TRIAL_RUN: meta.name,
            },
            "annotations": {
                **annotations,
                names.CHECKPOINT: "none",
                names.TRIAL: "false",
                names.TRIAL_GPUS: str(gpus),
            },
            "ownerReferences": [owner_reference(names.TRIAL_KIND, meta.name, meta.uid)],
        },
        "spec": _spec(trial, uj, gpus),
    }


def owner_reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    """With it an object goes when the other one does."""
    return {"apiVersion": names.API_VERSION, "kind": kind, "name": name, "uid": uid, "controller": True}


def _spec(trial: TrialRun, uj: UnifiedJob, gpus: int) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(uj.raw_spec)
    for key in _AFTERWARDS:
        spec.pop(key, None)
    spec["backoffLimit"] = 0
    if trial.spec.priority_class_name is not None:
        spec["priorityClassName"] = trial.spec.priority_class_name
    replicas = spec["replicaSpec"]
    for key in _ELASTIC:
        replicas.pop(key, None)
    count = gpus // uj.spec.replica_spec.gpus_per_replica
    replicas["minReplicas"] = replicas["maxReplicas"] = count
    _prepare(replicas["template"]["spec"])
    return spec


def _prepare(pod: dict[str, Any]) -> None:
    """Lets a script see that it is tried out, and keeps the end of its output where it fails."""
    given_s = pod.get("terminationGracePeriodSeconds")
    pod["terminationGracePeriodSeconds"] = min(int(GRACE_S), given_s if isinstance(given_s, int) else 30)
    for container in pod.get("containers") or ():
        container["env"] = [*(container.get("env") or ()), {"name": MARK, "value": "1"}]
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
