"""A task, a command or a UnifiedJob as the objects that are written to a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from batuta.backends.kube import names
from batuta.backends.kube.unified_job.from_task import TaskManifests, from_task
from batuta.backends.kube.unified_job.task_pod import DOCKER
from batuta.client.submission import Submission
from batuta.spec.accelerator import ANY
from batuta.spec.overrides import Overrides
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task, parse_task
from batuta.spec.task_paths import PathRules

IMAGE, WORKDIR_IN_IMAGE = "image_id", "workdir_in_image"
"""Overrides that only a cluster understands."""
_OF_UNIFIED_JOBS = ("name", "queue")
"""Overrides that a UnifiedJob takes: all else stands in its file."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who submits, and to where."""

    namespace: str
    user: Callable[[], str]
    products: Callable[[], Sequence[str]]
    """The GPUs of the cluster, as its nodes are labelled; asked for when a task names a type."""


def manifests_of(submission: Submission, sender: Sender) -> TaskManifests:
    """What to write. Raises InputError with everything that stands against it."""
    given = dict(submission.overrides)
    image, workdir = given.pop(IMAGE, ""), given.pop(WORKDIR_IN_IMAGE, "")
    unified = read_unified_job(submission)
    if unified is not None:
        if image or workdir or set(given) - set(_OF_UNIFIED_JOBS):
            raise InputError.of(
                "a UnifiedJob takes --name and --queue; all else stands in the file", file=submission.file
            )
        return TaskManifests(_prepared(unified, given, sender), None, ())
    if not submission.file and given.get("workdir") == submission.base_dir:
        del given["workdir"]  # a command runs in the image, not in the folder from which it was launched
    task = _task(submission, given)
    if image:
        task = replace(task, image_id=image if image.startswith(DOCKER) else DOCKER + image)
    return from_task(
        task,
        sender.namespace,
        name=task.name or f"job-{submission.key[:6]}",
        user=sender.user(),
        workdir_in_image=workdir,
        products=sender.products() if any(one.type != ANY for one in task.accelerators) else (),
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
        return None  # whoever reads it as a task says where it is no YAML
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


def _prepared(unified: dict[str, Any], given: Mapping[str, Any], sender: Sender) -> dict[str, Any]:
    problems = []
    if unified.get("apiVersion") != names.API_VERSION:
        problems.append(
            Problem(f"apiVersion {unified.get('apiVersion')!r} is not known", fix=names.API_VERSION)
        )
    metadata, spec = unified.get("metadata") or {}, unified.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise InputError([*problems, Problem("metadata and spec should be mappings")])
    if problems:
        raise InputError(problems)
    metadata = {"namespace": sender.namespace, **metadata}
    if "name" in given:
        metadata["name"] = given["name"]
        metadata.pop("generateName", None)
    annotations = {names.USER: sender.user(), **(metadata.get("annotations") or {})}
    metadata["annotations"] = {name: value for name, value in annotations.items() if value}
    queue = {"queueName": given["queue"]} if "queue" in given else {}
    return {**unified, "metadata": metadata, "spec": {**spec, **queue}}
