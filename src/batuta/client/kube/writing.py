"""What is written to a cluster: a new job, and what its user wants to become of it."""

from __future__ import annotations

import json
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, ApiError
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.objects import Batch
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.unified_job.from_task import TaskManifests
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import pinned_replicas
from batuta.client.errors import ClientError

SECRET: Final = Kind("", "v1", "secrets", "Secret", Batch)
_TRIED_OUT: Final = ("InTrial", "OutOfMemory")
"""Reasons of jobs that wait for their trial, or have had one in vain."""
_WHO_AM_I: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def submit(api: Api, found: TaskManifests, *, dry_run: bool = False) -> UnifiedJob:
    """Creates the job, and before it the Secret of its variables, which goes when the job is deleted."""
    body, namespace = found.job, found.job["metadata"]["namespace"]
    try:
        # First without effect: a job that is refused leaves no Secret behind, and changes nobody else's.
        checked = await api.create(UNIFIED_JOB, body, namespace, dry_run=True)
        if dry_run:
            return checked
        if found.secret is not None:
            await api.apply(SECRET, found.secret, force=True)
        made = await api.create(UNIFIED_JOB, body, namespace)
    except AlreadyExists as error:
        raise ClientError(await _taken(api, body["metadata"]["name"], namespace)) from error
    if found.secret is not None:
        await _hand_over(api, found.secret, made)
    return made


async def _taken(api: Api, name: str, namespace: str) -> str:
    try:
        state = (await api.get(UNIFIED_JOB, name, namespace)).status.state or "PENDING"
    except ApiError:
        state = "there"
    return (
        f"job {namespace}/{name} is {state} already: choose another --name, "
        f"or make room with kubectl delete unifiedjob -n {namespace} {name}"
    )


async def _hand_over(api: Api, secret: dict[str, Any], owner: UnifiedJob) -> None:
    reference = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
    }
    meta = secret["metadata"]
    patch = {"metadata": {"ownerReferences": [reference]}}
    await api.patch(SECRET, meta["name"], patch, meta["namespace"])


async def cancel(api: Api, uj: UnifiedJob) -> UnifiedJob:
    return await _patch(api, uj, {"metadata": {"annotations": {names.CANCEL: "true"}}})


async def park(api: Api, uj: UnifiedJob) -> UnifiedJob:
    return await _patch(api, uj, {"spec": {"suspend": True}})


async def resume(api: Api, uj: UnifiedJob) -> UnifiedJob:
    """Lets it run, without its trial; a size that was pinned to 0 is left to the scheduler again."""
    patch: dict[str, Any] = {"spec": {"suspend": False}}
    if uj.status.reason in _TRIED_OUT and not uj.spec.suspend:
        return await _patch(api, uj, {"metadata": {"annotations": {names.TRIAL: "false"}}})
    if pinned_replicas(uj) == 0:
        patch = patch | _unpinned(uj)
        patch["spec"] = {"suspend": False, **patch["spec"]}
    return await _patch(api, uj, patch)


async def resize(
    api: Api, uj: UnifiedJob, replicas: int | None, least: int | None, most: int | None
) -> UnifiedJob:
    """Pins the size, or changes the range within which the scheduler chooses."""
    changed: dict[str, Any] = {}
    if least is not None:
        changed["minReplicas"] = least
    if most is not None:
        changed["maxReplicas"] = most
    patch: dict[str, Any] = {"spec": {"replicaSpec": changed}}
    if replicas is not None:
        changed["targetReplicas"] = replicas
        # A target that differs from what the scheduler noted was written by a person.
        patch["metadata"] = {"annotations": {names.TARGET: None}}
    return await _patch(api, uj, patch)


async def unpin(api: Api, uj: UnifiedJob) -> UnifiedJob:
    """The size that a person wrote becomes one that the scheduler may change."""
    return uj if pinned_replicas(uj) is None else await _patch(api, uj, _unpinned(uj))


def _unpinned(uj: UnifiedJob) -> dict[str, Any]:
    target = uj.spec.replica_spec.target_replicas
    return {
        # Only as long as it is that target: the scheduler may be writing another one just now.
        "metadata": {
            "annotations": {names.TARGET: str(target)},
            "resourceVersion": uj.metadata.resource_version,
        },
        "spec": {"replicaSpec": {"targetReplicas": target}},
    }


async def _patch(api: Api, uj: UnifiedJob, patch: dict[str, Any]) -> UnifiedJob:
    return await api.patch(UNIFIED_JOB, uj.metadata.name, patch, uj.metadata.namespace)


async def own_name(api: Api) -> str:
    """Who the API server thinks we are; nothing where it does not tell."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        said = json.loads(await api.raw("POST", _WHO_AM_I, body))
        return str(said["status"]["userInfo"]["username"])
    except (ApiError, KeyError, TypeError, ValueError):
        return ""
