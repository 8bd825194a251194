"""Writes jobs, trial runs and node changes to the Kubernetes API server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from batuta.apitypes import resources as a
from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, ApiError, Forbidden, NotFound
from batuta.backends.kube.client.kinds import NODE, Kind
from batuta.backends.kube.health.annotations import records_on
from batuta.backends.kube.health.taints import EFFECT, own_taint
from batuta.backends.kube.objects import Batch
from batuta.backends.kube.trial.model import TRIAL_RUN, MeasuredRun, TrialRun
from batuta.backends.kube.unified_job.from_task import DOCKER, TaskManifests, from_task
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.backends.kube.unified_job.to_job import pinned_replicas
from batuta.client.errors import ClientError
from batuta.client.kube.views import read_number
from batuta.client.submission import Submission
from batuta.core.health_record import WHOLE_NODE, State
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import Overrides
from batuta.spec.task_paths import PathRules
from batuta.spec.task_resources import ANY_GPU

Owner = TypeVar("Owner", UnifiedJob, TrialRun)
SECRET: Final = Kind("", "v1", "secrets", "Secret", Batch)
_TRIED_OUT: Final = ("InTrial", "OutOfMemory")  # reasons of jobs that wait for their trial, or have had one in vain
_WHO_AM_I: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def submit(api: Api, found: TaskManifests, *, dry_run: bool = False) -> UnifiedJob:
    """Creates the job, and before it the Secret of its variables, which goes when the job is deleted."""
    try:
        return await _create(api, UNIFIED_JOB, found.job, found.secret, dry_run=dry_run)
    except AlreadyExists as error:
        metadata = found.job["metadata"]
        raise ClientError(await _name_taken(api, metadata["name"], metadata["namespace"])) from error


async def _create(
    api: Api, kind: Kind[Owner], body: dict[str, Any], secret: dict[str, Any] | None, *, dry_run: bool = False
) -> Owner:
    namespace = body["metadata"]["namespace"]
    # A dry run first: an object that is refused must not leave or change a Secret.
    checked = await api.create(kind, body, namespace, dry_run=True)
    if dry_run:
        return checked
    if secret is not None:
        await api.apply(SECRET, secret, force=True)
    made = await api.create(kind, body, namespace)
    if secret is not None:
        meta = made.metadata
        owner = {"apiVersion": names.API_VERSION, "kind": body["kind"], "name": meta.name, "uid": meta.uid}
        await api.patch(SECRET, secret["metadata"]["name"], {"metadata": {"ownerReferences": [owner]}}, namespace)
    return made


async def _name_taken(api: Api, name: str, namespace: str) -> str:
    try:
        state = (await api.get(UNIFIED_JOB, name, namespace)).status.state or "PENDING"
    except ApiError:
        state = "there"
    return (
        f"job {namespace}/{name} is {state} already: choose another --name, "
        f"or make room with kubectl delete unifiedjob -n {namespace} {name}"
    )


async def cancel(api: Api, uj: UnifiedJob) -> UnifiedJob:
    return await _patch(api, uj, {"metadata": {"annotations": {names.CANCEL: "true"}}})


async def park(api: Api, uj: UnifiedJob) -> UnifiedJob:
    return await _patch(api, uj, {"spec": {"suspend": True}})


async def resume(api: Api, uj: UnifiedJob) -> UnifiedJob:
    """Let a job run, without its trial runs; a size pinned to 0 is left to the scheduler again."""
    if uj.status.reason in _TRIED_OUT and not uj.spec.suspend:
        return await _patch(api, uj, {"metadata": {"annotations": {names.TRIAL: "false"}}})
    patch = _unpinned(uj) if pinned_replicas(uj) == 0 else {}
    return await _patch(api, uj, {**patch, "spec": {"suspend": False, **patch.get("spec", {})}})


async def resize(api: Api, uj: UnifiedJob, replicas: int | None, least: int | None, most: int | None) -> UnifiedJob:
    """Pins the size, or changes the range within which the scheduler chooses."""
    asked = {"minReplicas": least, "maxReplicas": most, "targetReplicas": replicas}
    changed = {name: value for name, value in asked.items() if value is not None}
    patch: dict[str, Any] = {"spec": {"replicaSpec": changed}}
    if replicas is not None:
        # A target that differs from what the scheduler noted was written by a person.
        patch["metadata"] = {"annotations": {names.TARGET: None}}
    return await _patch(api, uj, patch)


async def unpin(api: Api, uj: UnifiedJob) -> UnifiedJob:
    return uj if pinned_replicas(uj) is None else await _patch(api, uj, _unpinned(uj))


def _unpinned(uj: UnifiedJob) -> dict[str, Any]:
    target = uj.spec.replica_spec.target_replicas
    return {
        # Only as long as it is that target: the scheduler may be writing another one just now.
        "metadata": {"annotations": {names.TARGET: str(target)}, "resourceVersion": uj.metadata.resource_version},
        "spec": {"replicaSpec": {"targetReplicas": target}},
    }


async def _patch(api: Api, uj: UnifiedJob, patch: dict[str, Any]) -> UnifiedJob:
    return await api.patch(UNIFIED_JOB, uj.metadata.name, patch, uj.metadata.namespace)


async def own_user_name(api: Api) -> str:
    """Return our user name at the API server; empty where it does not say."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        said = json.loads(await api.raw("POST", _WHO_AM_I, body))
        return str(said["status"]["userInfo"]["username"])
    except (ApiError, KeyError, TypeError, ValueError):
        return ""


IMAGE, WORKDIR_IN_IMAGE = "image_id", "workdir_in_image"  # overrides that only a cluster understands
_OF_UNIFIED_JOBS = ("name", "queue")  # overrides that a UnifiedJob takes: all else stands in its file


@dataclass(frozen=True, slots=True)
class SubmitContext:
    """The namespace, the user and the cluster of a submit."""

    namespace: str
    user: Callable[[], str]
    products: Callable[[], Sequence[str]]
    """The GPUs of the cluster, as its nodes are labelled; asked for when a task names a type."""


def manifests_of(submission: Submission, context: SubmitContext) -> TaskManifests:
    """Return the objects to write. Raises InputError with every problem."""
    given = dict(submission.overrides)
    image, workdir = given.pop(IMAGE, ""), given.pop(WORKDIR_IN_IMAGE, "")
    unified = read_unified_job(submission)
    if unified is not None:
        if image or workdir or set(given) - set(_OF_UNIFIED_JOBS):
            raise InputError.of(
                "a UnifiedJob takes --name and --queue; all else stands in the file", file=submission.file
            )
        return TaskManifests(_completed_unified_job(unified, given, context), None, ())
    if not submission.file and given.get("workdir") == submission.base_dir:
        del given["workdir"]  # a command runs in the image, not in the folder from which it was launched
    task = _task(submission, given)
    if image:
        task = replace(task, image_id=image if image.startswith(DOCKER) else DOCKER + image)
    return from_task(
        task,
        context.namespace,
        name=task.name or f"job-{submission.key[:6]}",
        user=context.user(),
        workdir_in_image=workdir,
        products=context.products() if any(one.type != ANY_GPU for one in task.accelerators) else (),
    )


def read_unified_job(submission: Submission) -> dict[str, Any] | None:
    """The UnifiedJob that was submitted; None when it is a task."""
    if isinstance(submission.task, Mapping):
        return dict(submission.task) if submission.task.get("kind") == names.KIND else None
    if names.KIND not in submission.task:
        return None
    try:
        found = [one for one in yaml.safe_load_all(submission.task) if one is not None]
    except (yaml.YAMLError, ValueError):
        return None  # parsing it as a task reports where it is no YAML
    kinds = [one.get("kind") if isinstance(one, dict) else None for one in found]
    if names.KIND not in kinds:
        return None
    if len(found) > 1:
        raise InputError.of(
            f"it has {len(found)} objects; launch takes one UnifiedJob",
            file=submission.file,
            fix=f"kubectl apply -f {submission.file}",
        )
    return dict(found[0])


def _task(submission: Submission, given: Mapping[str, Any]) -> Task:
    task = submission.task
    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
    rules = PathRules(Path(submission.base_dir), Path.home())
    # Nothing is uploaded, so a folder need not exist here: it is refused, or it is in the image.
    return parse_task(text, submission.file or "command", Overrides(**given), rules, check_paths=False)


def _completed_unified_job(unified: dict[str, Any], given: Mapping[str, Any], context: SubmitContext) -> dict[str, Any]:
    problems = []
    if unified.get("apiVersion") != names.API_VERSION:
        problems.append(Problem(f"apiVersion {unified.get('apiVersion')!r} is not known", fix=names.API_VERSION))
    metadata, spec = unified.get("metadata") or {}, unified.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise InputError([*problems, Problem("metadata and spec should be mappings")])
    if problems:
        raise InputError(problems)
    metadata = {"namespace": context.namespace, **metadata}
    if "name" in given:
        metadata["name"] = given["name"]
        metadata.pop("generateName", None)
    annotations = {names.USER: context.user(), **(metadata.get("annotations") or {})}
    metadata["annotations"] = {name: value for name, value in annotations.items() if value}
    queue = {"queueName": given["queue"]} if "queue" in given else {}
    return {**unified, "metadata": metadata, "spec": {**spec, **queue}}


async def cordon(api: Api, node: str) -> None:
    await _get_node(api, node)
    await api.patch(NODE, node, {"spec": {"unschedulable": True}})


async def uncordon(api: Api, node: str) -> None:
    """End a user's cordon; where there is none, override the health controller."""
    found = await _get_node(api, node)
    if found.spec.unschedulable or not own_taint(found.metadata.annotations):
        await api.patch(NODE, node, {"spec": {"unschedulable": False}})
        return
    # The operator sees that its taint is gone. All other taints must stay.
    live: dict[str, Any] = msgspec.json.decode(await api.raw("GET", NODE.path("", node)))
    taints = [
        taint
        for taint in live["spec"].get("taints", ())
        if (taint["key"], taint["effect"]) != (names.UNHEALTHY, EFFECT)
    ]
    version = live["metadata"]["resourceVersion"]
    await api.patch(NODE, node, {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})


async def mark_repaired(api: Api, node: str, gpu: int | None) -> None:
    """Report a repair of a node or GPU: the operator starts a burn-in."""
    found = await _get_node(api, node)
    target = WHOLE_NODE if gpu is None else gpu
    ill = {one for one, record in records_on(found.metadata.annotations).items() if record.state is State.ILL}
    if target not in ill:
        listed = ", ".join("the node" if one == WHOLE_NODE else f"GPU {one}" for one in sorted(ill))
        what = f"node {node}" if gpu is None else f"GPU {gpu} of node {node}"
        raise ClientError(f"{what} is not ill, so there is nothing to mend; ill there: {listed or 'nothing'}")
    words = {"metadata": {"annotations": {names.MENDED: "node" if gpu is None else f"gpu-{gpu}"}}}
    await api.patch(NODE, node, words)


async def _get_node(api: Api, node: str) -> objects.Node:
    try:
        return await api.get(NODE, node)
    except NotFound:
        raise ClientError(f"there is no node {node}: `batuta nodes` lists them") from None


_LONGEST_STEM: Final = 40
_ANNOTATIONS: Final = {names.TRIAL_BUDGET: "budgetSeconds", names.TRIAL_EACH: "eachSeconds"}
_OF_TRIALS: Final = (names.TRIAL, names.TRIAL_SIZES, *_ANNOTATIONS)
_NO_TRIALS: Final = "the cluster does not know TrialRuns: `batuta install --apply` adds them"


@dataclass(frozen=True, slots=True)
class TrialManifests:
    """What is written for a trial."""

    trial: dict[str, Any]
    secret: dict[str, Any] | None
    notes: tuple[str, ...]


def trial_manifests(submission: Submission, manifests_of: Callable[[Submission], TaskManifests]) -> TrialManifests:
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
    spec = _trial_options(annotations, said) | {
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


def _trial_options(annotations: Mapping[str, str], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the task for its trial, overridden by the command line."""
    found: dict[str, Any] = {field: int(annotations[key]) for key, field in _ANNOTATIONS.items() if key in annotations}
    if names.TRIAL_SIZES in annotations:
        found["sizes"] = [int(one) for one in annotations[names.TRIAL_SIZES].split(",")]
    if said.get("sizes"):
        found["sizes"] = sorted(set(said["sizes"]))
    for key, field in (("budget_s", "budgetSeconds"), ("each_s", "eachSeconds")):
        if said.get(key):
            found[field] = math.ceil(said[key])
    return found


async def create_trial(api: Api, found: TrialManifests) -> TrialRun:
    """Writes the trial, and its Secret, which goes when the trial is deleted."""
    try:
        return await _create(api, TRIAL_RUN, found.trial, found.secret)
    except NotFound as error:
        raise ClientError(_NO_TRIALS) from error


async def find_trial(api: Api, name: str, namespace: str) -> TrialRun:
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
    status = run.status
    return a.Trial(
        over=run.is_over,
        only=run.spec.template is not None,
        budget_s=float(run.spec.budget_seconds),
        each_s=float(status.each_seconds or 0),
        runs=tuple(_run_view(one, run.metadata.namespace) for one in status.runs),
        chosen_gpus=status.chosen_gpus,
        sentence=status.message if run.is_over else "",
    )


def _run_view(one: MeasuredRun, namespace: str) -> a.TrialRun:
    return a.TrialRun(
        run=f"{namespace}/{one.job}",
        gpus=one.gpus,
        state=one.state,
        gpu_type=one.gpu_type,
        nodes=one.nodes,
        batch=one.batch or None,
        steps_per_s=read_number(one.steps_per_second),
        units_per_s=read_number(one.units_per_second),
        unit=one.unit,
        efficiency=_fraction(one.efficiency_percentage),
        memory_mib=one.memory_mib,
        utilisation=_fraction(one.utilisation_percentage),
        detail=one.message,
    )


def _fraction(percent: int | None) -> float | None:
    return None if percent is None else percent / 100
