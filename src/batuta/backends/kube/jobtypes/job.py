"""Job: one indexed batch/v1 Job. The Job controller makes its pods, Batuta says how many, and when.

A resize is a restart without a new object: suspend, wait until no pod is left, set parallelism and
completions to the target, resume. A Job's pod template cannot be changed, except for the labels and
annotations of a suspended one: what differs from start to start travels as annotations, and the environment
refers to them.
"""

from __future__ import annotations

from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import (
    JOB,
    Child,
    ChildKind,
    JobStatus,
    JobType,
    Manifest,
    Observed,
    Run,
    Update,
    hash_of,
    metadata,
    sealed,
)
from batuta.backends.kube.jobtypes.pod_template import (
    WORKER,
    EnvVar,
    from_annotation,
    host_list,
    labels_of,
    members_service,
    pod_template,
    rank_env,
    run_env,
)
from batuta.backends.kube.jobtypes.status import members, replica_by_label, status_of_batch
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.unified_job.model import UnifiedJob

INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
SIZE: Final = "batuta.dev/replicas"
HOSTS: Final = "batuta.dev/hosts"
START: Final = names.START
_FROM_ANNOTATIONS: Final = {
    "SKYPILOT_NUM_NODES": SIZE,
    "PET_NNODES": SIZE,
    "WORLD_SIZE": SIZE,
    "SKYPILOT_NODE_IPS": HOSTS,
    "BATUTA_RESTART": START,
}


class IndexedJob(JobType):
    """The type `Job`."""

    name: str = "Job"
    watches: tuple[ChildKind, ...] = (JOB,)

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        return [members_service(job, {}), _child(job, run)]

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        return status_of_batch(observed, JOB, run, members(observed.pods, run))

    def replica_of(self, pod: Pod) -> int | None:
        return replica_by_label(pod, INDEX_LABEL)


def _child(job: UnifiedJob, run: Run) -> Child:
    template = pod_template(job, run, WORKER, _env(job, run))
    template["spec"]["subdomain"] = job.metadata.name
    # One host per line, as SKYPILOT_NODE_IPS has them.
    changing = {SIZE: str(run.target), HOSTS: host_list(job, run.target), START: str(run.start)}
    template["metadata"]["annotations"] |= changing
    itself = template["spec"]["restartPolicy"] == "OnFailure"
    spec: Manifest = {
        "completionMode": "Indexed",
        "suspend": run.target == 0,
        # A container that starts again in its pod is counted by the Job; a start of all by Batuta.
        "backoffLimit": job.spec.backoff_limit if itself else 0,
        "template": template,
    }
    if run.target:
        spec |= {"parallelism": run.target, "completions": run.target}
    meta = metadata(job, job.metadata.name, labels_of(job, run, WORKER), {names.TEMPLATE: hash_of(template["spec"])})
    manifest = sealed(JOB, {"metadata": meta, "spec": spec})
    halt = {"spec": {"suspend": True}}
    return Child(JOB, manifest, Update.HALT, halt, _resume(manifest), only_change=run.target == 0)


def _env(job: UnifiedJob, run: Run) -> dict[str, str | EnvVar]:
    """The index comes from the Job controller, what changes from start to start from annotations."""
    rank = {name: from_annotation(INDEX_LABEL) for name in rank_env("")}
    changing = {name: from_annotation(annotation) for name, annotation in _FROM_ANNOTATIONS.items()}
    return {**run_env(job, run), **changing, **rank}


def _resume(manifest: Manifest) -> Manifest:
    """The merge patch that makes a quiet Job like this one."""
    spec = {key: manifest["spec"][key] for key in ("suspend", "parallelism", "completions") if key in manifest["spec"]}
    if not spec["suspend"]:
        spec["template"] = {"metadata": manifest["spec"]["template"]["metadata"]}
    return {"metadata": {key: manifest["metadata"][key] for key in ("labels", "annotations")}, "spec": spec}


INDEXED_JOB: Final = IndexedJob()
