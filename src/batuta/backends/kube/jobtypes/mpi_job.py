"""MPIJob: a `kubeflow.org/v2beta1` MPIJob, run by mpi-operator, whose workers Batuta binds.

The template is the launcher's, without GPUs, and the workers', which run sshd: an image for mpi-operator does
for both. `Worker.replicas` follows the target. mpi-operator keeps `/etc/mpi/discover_hosts.sh` up to date, so
a launcher that asks it (elastic Horovod) goes on. Any other (mpirun) has a fixed number of ranks, and the
MPIJob is replaced. Suspending it would not do: mpi-operator v0.6 resumes the launcher with the environment
that it had before.
"""

from __future__ import annotations

from typing import Final

from batuta.backends.kube.jobtypes.batch_status import status_of_batch
from batuta.backends.kube.jobtypes.child import MPI_JOB, Child, ChildKind, Manifest, Update, metadata, sealed
from batuta.backends.kube.jobtypes.environment import EnvVar, run_env
from batuta.backends.kube.jobtypes.job_type import Change, FollowUp, JobStatus, Observed, Run
from batuta.backends.kube.jobtypes.pod_parts import LAUNCHER, WORKER, labels_of, pod_template
from batuta.backends.kube.jobtypes.pod_status import members, replica_by_label
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.unified_job.model import UnifiedJob

INDEX_LABEL: Final = "training.kubeflow.org/replica-index"
_DISCOVERY: Final = ("--host-discovery-script", "discover_hosts.sh")


class MpiJob:
    """The type `MPIJob`."""

    name: str = "MPIJob"
    watches: tuple[ChildKind, ...] = (MPI_JOB,)

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        return Change.IN_PLACE if _asks_for_hosts(job) else Change.BY_RESTART

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        return [_child(job, run)] if run.target else []

    def follow(self, job: UnifiedJob, run: Run, observed: Observed) -> FollowUp:
        return FollowUp()

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        return status_of_batch(observed, MPI_JOB, run, members(observed.pods, run, LAUNCHER))

    def replica_of(self, pod: Pod) -> int | None:
        return replica_by_label(pod, INDEX_LABEL)


def _asks_for_hosts(job: UnifiedJob) -> bool:
    """Whether the launcher looks up its workers while it runs."""
    pod = job.spec.replica_spec.template.get("spec") or {}
    container = (pod.get("containers") or [{}])[0]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return any(mark in str(word) for word in words for mark in _DISCOVERY)


def _child(job: UnifiedJob, run: Run) -> Child:
    each = job.spec.replica_spec.gpus_per_replica
    env: dict[str, str | EnvVar] = {**run_env(job, run)}
    launcher = pod_template(job, run, LAUNCHER, env | {"BATUTA_NUM_PROCS": str(run.target * each)})
    worker = pod_template(job, run, WORKER, env)
    restart = worker["spec"].pop("restartPolicy")
    launcher["spec"].pop("restartPolicy")
    for key in ("command", "args"):  # mpi-operator runs sshd where nothing is said
        worker["spec"]["containers"][0].pop(key, None)
    spec: Manifest = {
        "slotsPerWorker": each,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {
            "cleanPodPolicy": "Running",
            # A container that starts again in its pod is counted by mpi-operator; a start of all by Batuta.
            "backoffLimit": job.spec.backoff_limit if restart == "OnFailure" else 0,
        },
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
            "Worker": {"replicas": run.target, "restartPolicy": restart, "template": worker},
        },
    }
    meta = metadata(job, job.metadata.name, labels_of(job, run, WORKER), {})
    manifest = sealed(MPI_JOB, {"metadata": meta, "spec": spec})
    resize = {
        "metadata": {"annotations": manifest["metadata"]["annotations"]},
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": run.target}}},
    }
    return Child(MPI_JOB, manifest, Update.KEEP, resume=resize)


MPI: Final = MpiJob()
