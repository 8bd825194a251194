"""Pods, Job and TorchElastic: as many pods of a template as the target says.

A resize of Pods starts all of them again. TorchElastic runs torchrun, with a c10d rendezvous on replica 0.

Job is one indexed batch/v1 Job: the Job controller makes its pods, Batuta says how many, and when. A resize is a
restart without a new object: suspend, wait until no pod is left, set parallelism and completions to the target,
resume. A Job's pod template cannot be changed, except for the labels and annotations of a suspended one: what
differs from start to start travels as annotations, and the environment refers to them.

How torchrun behaves, from its source (dynamic_rendezvous, the agent's api), and what follows from that:
- An agent that arrives at a complete rendezvous with room (members < max) puts itself on the wait list. The
  agents of the members see it, stop their workers (SIGTERM) and join the next round. This does not count as a
  restart. So a job **grows in place**: pods and agents that are there stay.
- A round is complete as soon as max members are in it; else `last_call_timeout` after the min-th came. The
  default is 30 s, lost at each start and resize below max. New members are bound together and arrive within
  seconds: 5 s.
- The deadline is set by the agent whose own joining makes the number equal to *its* min. Agents with
  different ranges may miss the moment: without a deadline, older versions fail, and newer ones wait for
  `join_timeout`. So **all members of a run have one range**: as many as it was started with, to maxReplicas
  at that time. A start waits for all.
- An agent that ends by a signal leaves the rendezvous only when its heartbeats are missed, and nothing tells
  the other agents: their workers hang in a collective, or fail and use up restarts. So a job **shrinks by a
  restart** of all members, which can all save at the same time.
- Whether an agent hosts the store is guessed from host names, which fails for the names that pods have in
  older versions. So it is said (`is_host`). Members that start before replica 0 wait for it
  (`read_timeout`: images are pulled at different speed; the default gives up after a minute).
- What fails is started again by Batuta, at the size that is right then: `max_restarts` is 0.
"""

from __future__ import annotations

from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import (
    JOB,
    Change,
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
    host_of,
    labels_of,
    member_name,
    member_pods,
    members_service,
    pod_template,
    rank_env,
    run_env,
)
from batuta.backends.kube.jobtypes.status import members, replica_by_label, status_of_batch, status_of_members
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
RENDEZVOUS_PORT: Final = 29400
LAST_CALL_S: Final = 5
JOIN_S: Final = 600
STORE_S: Final = 600


class Pods(JobType):
    """Equal pods that find each other by name."""

    name: str = "Pods"

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        return [members_service(job, {}), *member_pods(job, run)]

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        return status_of_members(members(observed.pods, run), run)

    def replica_of(self, pod: Pod) -> int | None:
        return replica_by_label(pod)


PODS: Final = Pods()


class TorchElastic(Pods):
    """torchrun on every replica."""

    name: str = "TorchElastic"

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        grows = run.target <= target <= run.ceiling_of(job)
        return Change.IN_PLACE if grows else Change.BY_RESTART

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        service = members_service(job, {"rendezvous": RENDEZVOUS_PORT})
        return [service, *member_pods(job, run, _env(job, run), _defaults)]


def _env(job: UnifiedJob, run: Run) -> dict[str, str]:
    first, ceiling = run.first_of(), run.ceiling_of(job)
    return {
        "PET_NNODES": str(first) if first == ceiling else f"{first}:{ceiling}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{host_of(job, member_name(job, 0))}:{RENDEZVOUS_PORT}",
        "PET_RDZV_ID": f"{job.metadata.uid}-{run.start}",
    }


def _defaults(replica: int) -> dict[str, str]:
    """What a template may say otherwise."""
    waits = f"last_call_timeout={LAST_CALL_S},join_timeout={JOIN_S},read_timeout={STORE_S}"
    return {"PET_RDZV_CONF": f"is_host={'true' if replica == 0 else 'false'},{waits}", "PET_MAX_RESTARTS": "0"}


TORCH_ELASTIC: Final = TorchElastic()


class IndexedJob(JobType):
    """The type `Job`."""

    name: str = "Job"
    watches: tuple[ChildKind, ...] = (JOB,)

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        return [members_service(job, {}), _job_child(job, run)]

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        return status_of_batch(observed, JOB, run, members(observed.pods, run))

    def replica_of(self, pod: Pod) -> int | None:
        return replica_by_label(pod, INDEX_LABEL)


def _job_child(job: UnifiedJob, run: Run) -> Child:
    template = pod_template(job, run, WORKER, _job_env(job, run))
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


def _job_env(job: UnifiedJob, run: Run) -> dict[str, str | EnvVar]:
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
