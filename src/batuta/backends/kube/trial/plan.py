"""Plan a TrialRun: its job, sizes and duration, and the UnifiedJob of each size.

Pure: answers follow from what the API server shows.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.crd import LONGEST_NAME, broken
from batuta.backends.kube.trial.model import RULES, TrialRun
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import read_request
from batuta.core.job import Job
from batuta.core.trial import TrialPlan
from batuta.engine.trials.controller import GRACE_S, MARK
from batuta.engine.trials.lifecycle import plan_trial
from batuta.spec.problem import InputError
from batuta.spec.task_elastic import TrialSpec
from batuta.spec.task_job import NEVER_S

_ELASTIC: Final = ("sizes", "targetReplicas")
_AFTERWARDS: Final = ("suspend", "ttlSecondsAfterFinished")
_OWN: Final = (names.TARGET, names.CANCEL, names.WANTED, names.TRIAL_SIZES, names.TRIAL_BUDGET, names.TRIAL_EACH)
_FOREIGN: Final = "kubectl.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial that can be made."""

    uj: UnifiedJob
    job: Job  # the same to the scheduler, with the plan
    plan: TrialPlan


@dataclass(frozen=True, slots=True)
class Unplannable:
    """Why a trial cannot be made: sentences with the field and the fix."""

    faults: tuple[str, ...]


def tried_job(trial: TrialRun, jobs: Mapping[str, UnifiedJob]) -> UnifiedJob | None:
    """The UnifiedJob that is tried out; None while the one that is named is not there."""
    spec, meta = trial.spec, trial.metadata
    if spec.template is None:
        return jobs.get(f"{meta.namespace}/{spec.job_name}")
    written = spec.template.metadata
    labels = {names.APPLICATION: written.name or meta.name, **written.labels}
    return UnifiedJob(
        metadata=objects.Meta(
            name=meta.name,
            namespace=meta.namespace,
            creation_timestamp=meta.creation_timestamp,
            labels=labels,
            annotations=written.annotations,
        ),
        raw_spec=spec.template.spec,
    )


def plan(
    trial: TrialRun, uj: UnifiedJob, classes: Mapping[str, objects.PriorityClass], most_that_fit: Callable[[Job], int]
) -> Planned | Unplannable:
    """The plan. Once it has been written down it stays, whatever nodes come and go."""
    faults = [*trial.unreadable, *(() if trial.unreadable else broken(RULES, trial))]
    asked = read_request(uj, classes)
    job = asked.job
    if job is None:
        faults += asked.faults
    elif job.share is not None:
        faults.append("spec.sharing: a share of a GPU has one size, so there is nothing to try out")
    elif job.cpu_only:
        faults.append(
            "spec.replicaSpec.gpusPerReplica: a job without GPUs has one size, so there is nothing to try out"
        )
    if faults or job is None:
        return Unplannable(tuple(dict.fromkeys(faults)))
    try:
        found = _first_plan(trial, uj, job, most_that_fit(job))
    except InputError as error:
        return Unplannable(tuple(str(one) for one in error.problems))
    written = trial.status
    if written.runs:
        each_s = float(written.each_seconds or found.each_s)
        found = replace(found, sizes=tuple(one.gpus for one in written.runs), each_s=each_s)
    return Planned(uj, replace(job, trial=found), found)


def _first_plan(trial: TrialRun, uj: UnifiedJob, job: Job, most: int) -> TrialPlan:
    spec = trial.spec
    is_open = uj.metadata.annotations.get(names.WANTED) == names.ANY_SIZE
    wishes = TrialSpec(
        wanted=True,
        sizes=tuple(spec.sizes or ()) if not trial.status.runs else (),
        budget_s=float(spec.budget_seconds),
        each_s=None if spec.each_seconds is None else float(spec.each_seconds),
    )
    return plan_trial(
        job, wishes, most, open_up_to=most if is_open else None, for_good=job.checkpoint_interval_s == NEVER_S
    )


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
        key: value for key, value in uj.metadata.annotations.items() if key not in _OWN and not key.startswith(_FOREIGN)
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": run_name(meta.name, gpus),
            "namespace": meta.namespace,
            "labels": {**uj.metadata.labels, names.APPLICATION: job.application, names.TRIAL_RUN: meta.name},
            "annotations": {**annotations, names.CHECKPOINT: "none", names.TRIAL: "false", names.TRIAL_GPUS: str(gpus)},
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
