"""Plan a TrialRun: its job, sizes and duration, the next actions, and the UnifiedJob of each size.

Pure: answers follow from what the API server shows.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.operator.admission import read_request
from batuta.backends.kube.trial.model import TrialRun, broken_rules
from batuta.backends.kube.unified_job.model import LONGEST_NAME, UnifiedJob
from batuta.core.job import Job
from batuta.core.trial import TrialPlan
from batuta.engine.trials.controller import GRACE_S, MARK, Begin, Conclude, Measure, plan_trial, window_end_s
from batuta.spec.problem import InputError
from batuta.spec.task_elastic import TrialSpec
from batuta.spec.task_job import NEVER_S


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial that can be made."""

    uj: UnifiedJob
    job: Job
    """The same to the scheduler, with the plan."""
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
    trial: TrialRun,
    uj: UnifiedJob,
    classes: Mapping[str, objects.PriorityClass],
    most_that_fit: Callable[[Job], int],
) -> Planned | Unplannable:
    """The plan. Once it has been written down it stays, whatever nodes come and go."""
    faults = [*trial.unreadable, *(() if trial.unreadable else broken_rules(trial))]
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
        job,
        wishes,
        most,
        open_up_to=most if is_open else None,
        for_good=job.checkpoint_interval_s == NEVER_S,
    )


@dataclass(frozen=True, slots=True)
class End:
    """What the run at this size showed is written down: it may go."""

    gpus: int


Action: TypeAlias = Begin | Measure | End | Conclude


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """The UnifiedJob of one size, as the API server shows it."""

    is_over: bool = False
    started_s: float | None = None
    is_leaving: bool = False
    is_left_over: bool = False
    """It is that of a trial of the same name before this one, and goes with it."""


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """How far a trial is."""

    measured: Collection[int]
    """Sizes of which it is known what they showed, …"""
    written: Collection[int]
    """… and those of which the API server knows it too: what is only known here would be lost."""
    runs: Mapping[int, ObservedRun]
    watched_s: float = -math.inf
    """Since when this operator watches: it has seen nothing of what a run did before."""


@dataclass(frozen=True, slots=True)
class NextActions:
    """What is to be done now, and when to look again though nothing happens."""

    moves: tuple[Action, ...]
    due_s: float = math.inf


def next_actions(
    plan: TrialPlan, parallelism: int, began_s: float, standing: TrialProgress, now_s: float
) -> NextActions:
    """The smallest sizes first; no more at a time than may run beside each other."""
    end_s = began_s + plan.budget_s
    is_over = now_s >= end_s
    moves: list[Action] = []
    due_s, at_work = end_s, 0
    for gpus in plan.sizes:
        run = standing.runs.get(gpus)
        if gpus in standing.measured:
            if run is not None and not run.is_over:
                at_work += 1  # until its pods are gone: the next shall have the machine to itself
                if gpus in standing.written and not run.is_leaving:
                    moves.append(End(gpus))
        elif run is not None:
            at_work += 1
            over_s = end_s if run.is_left_over else _over_s(run, plan, standing.watched_s, end_s)
            if run.is_left_over and not is_over:
                continue
            if run.is_over or run.is_leaving or now_s >= over_s:
                moves.append(Measure(gpus))
            else:
                due_s = min(due_s, over_s)
        elif not is_over and at_work < parallelism:
            at_work += 1
            moves.append(Begin(gpus))
    if _is_done(plan, standing, is_over) and not any(isinstance(one, Measure) for one in moves):
        return NextActions((*moves, Conclude()))
    return NextActions(tuple(moves), due_s if now_s < due_s else math.inf)


def _is_done(plan: TrialPlan, standing: TrialProgress, is_over: bool) -> bool:
    """Whether all is known that will be. What has its measure written down need not be gone for that."""
    missing = [gpus for gpus in plan.sizes if gpus not in standing.written]
    if not is_over:
        return not missing
    return all(gpus not in standing.runs and gpus not in standing.measured for gpus in missing)


def _over_s(run: ObservedRun, plan: TrialPlan, watched_s: float, end_s: float) -> float:
    """When a run has had its time; one that waits for GPUs may do so as long as the budget lasts."""
    return end_s if run.started_s is None else window_end_s(plan, run.started_s, watched_s, end_s)


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
