"""Trials of a cluster, for the verbs: a TrialRun is written, and what has become of it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, NotFound
from batuta.backends.kube.trial.model import TRIAL_RUN, MeasuredRun, TrialRun
from batuta.backends.kube.unified_job.from_task import TaskManifests
from batuta.client import answers as a
from batuta.client.errors import ClientError
from batuta.client.kube.writing import SECRET
from batuta.client.submission import Submission
from batuta.spec.problem import InputError

_LONGEST_STEM: Final = 40
_ANNOTATIONS: Final = {
    names.TRIAL_BUDGET: "budgetSeconds",
    names.TRIAL_EACH: "eachSeconds",
}
_OF_TRIALS: Final = (names.TRIAL, names.TRIAL_SIZES, *_ANNOTATIONS)
_NO_TRIALS: Final = "the cluster does not know TrialRuns: `batuta install --apply` adds them"


@dataclass(frozen=True, slots=True)
class TrialManifests:
    """What is written for a trial."""

    trial: dict[str, Any]
    secret: dict[str, Any] | None
    notes: tuple[str, ...]


def trial_manifests(
    submission: Submission, manifests_of: Callable[[Submission], TaskManifests]
) -> TrialManifests:
    """The TrialRun of a task or a UnifiedJob. Raises InputError with everything that stands against it.

    Its name is one of its own, as is that of its Secret: the task may be launched at the same time.
    """
    said = dict(submission.overrides.get("trial") or {})
    rest = {key: value for key, value in submission.overrides.items() if key != "trial"}
    task = manifests_of(replace(submission, overrides=rest)).job
    metadata = task["metadata"]
    stem = str(metadata.get("name") or metadata.get("generateName") or "trial")
    name = f"{stem[:_LONGEST_STEM].strip('-.')}-{submission.key[:6]}"
    own = manifests_of(replace(submission, overrides={**rest, "name": name}))
    annotations = own.job["metadata"].get("annotations") or {}
    spec = _wishes(annotations, said) | {
        "template": {
            "metadata": {
                "name": stem,
                "labels": own.job["metadata"].get("labels") or {},
                "annotations": {key: text for key, text in annotations.items() if key not in _OF_TRIALS},
            },
            "spec": own.job["spec"],
        }
    }
    if "sharing" in own.job["spec"]:
        raise InputError.of("a share of a GPU has one size, so there is nothing to try out")
    trial = {
        "apiVersion": names.API_VERSION,
        "kind": names.TRIAL_KIND,
        "metadata": {"name": name, "namespace": own.job["metadata"]["namespace"]},
        "spec": spec,
    }
    return TrialManifests(trial, own.secret, own.notes)


def _wishes(annotations: Mapping[str, str], said: Mapping[str, Any]) -> dict[str, Any]:
    """What the task says of its trial, and over it what the command line does."""
    found: dict[str, Any] = {
        field: int(annotations[key]) for key, field in _ANNOTATIONS.items() if key in annotations
    }
    if names.TRIAL_SIZES in annotations:
        found["sizes"] = [int(one) for one in annotations[names.TRIAL_SIZES].split(",")]
    if said.get("sizes"):
        found["sizes"] = sorted(set(said["sizes"]))
    for key, field in (("budget_s", "budgetSeconds"), ("each_s", "eachSeconds")):
        if said.get(key):
            found[field] = math.ceil(said[key])
    return found


async def create(api: Api, found: TrialManifests) -> TrialRun:
    """Writes the trial, and its Secret, which goes when the trial is deleted."""
    namespace = found.trial["metadata"]["namespace"]
    try:
        await api.create(TRIAL_RUN, found.trial, namespace, dry_run=True)
        if found.secret is not None:
            await api.apply(SECRET, found.secret, force=True)
        made = await api.create(TRIAL_RUN, found.trial, namespace)
    except NotFound as error:
        raise ClientError(_NO_TRIALS) from error
    if found.secret is not None:
        owner = {
            "apiVersion": names.API_VERSION,
            "kind": names.TRIAL_KIND,
            "name": made.metadata.name,
            "uid": made.metadata.uid,
        }
        await api.patch(
            SECRET, found.secret["metadata"]["name"], {"metadata": {"ownerReferences": [owner]}}, namespace
        )
    return made


async def find(api: Api, name: str, namespace: str) -> TrialRun:
    """A trial as it is now."""
    try:
        return await api.get(TRIAL_RUN, name, namespace)
    except NotFound:
        raise ClientError(f"there is no trial {namespace}/{name} any more") from None


async def trial_of(api: Api, job: str, namespace: str) -> a.Trial | None:
    """What the trial of a job has shown so far; None for a job without one, or one that may not be seen."""
    try:
        run = await api.get(TRIAL_RUN, job, namespace)
    except (NotFound, Forbidden):
        return None
    except ApiError as error:
        raise ClientError(str(error)) from error
    return trial_view(run) if run.spec.job_name == job else None


def trial_view(run: TrialRun) -> a.Trial:
    """A trial as people see it."""
    status = run.status
    return a.Trial(
        over=run.is_over,
        only=run.spec.template is not None,
        budget_s=float(run.spec.budget_seconds),
        each_s=float(status.each_seconds or 0),
        runs=tuple(_run(one, run.metadata.namespace) for one in status.runs),
        chosen_gpus=status.chosen_gpus,
        sentence=status.message if run.is_over else "",
    )


def _run(one: MeasuredRun, namespace: str) -> a.TrialRun:
    return a.TrialRun(
        run=f"{namespace}/{one.job}",
        gpus=one.gpus,
        state=one.state,
        gpu_type=one.gpu_type,
        nodes=one.nodes,
        batch=one.batch or None,
        steps_per_s=_number(one.steps_per_second),
        units_per_s=_number(one.units_per_second),
        unit=one.unit,
        efficiency=_part(one.efficiency_percentage),
        memory_mib=one.memory_mib,
        utilisation=_part(one.utilisation_percentage),
        detail=one.message,
    )


def _number(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _part(percent: int | None) -> float | None:
    return None if percent is None else percent / 100
