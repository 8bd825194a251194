"""MPIJob and ElasticHorovod: workers that run sshd, and a launcher that runs the template's command.

MPIJob is a `kubeflow.org/v2beta1` MPIJob, run by mpi-operator, whose workers Batuta binds. The template is
the launcher's, without GPUs, and the workers', which run sshd: an image for mpi-operator does for both.
`Worker.replicas` follows the target. mpi-operator keeps `/etc/mpi/discover_hosts.sh` up to date, so a
launcher that asks it (elastic Horovod) goes on. Any other (mpirun) has a fixed number of ranks, and the
MPIJob is replaced. Suspending it would not do: mpi-operator v0.6 resumes the launcher with the environment
that it had before.

ElasticHorovod needs no mpi-operator. The launcher (horovodrun) asks `$BATUTA_DISCOVERY_SCRIPT` every second
which hosts there are. The script is a ConfigMap that lists the running workers; Batuta writes it as soon as
one comes or goes, and makes the launcher's kubelet see it at once (by itself it looks every minute or so). A
worker that leaves is taken from the list before its pod is deleted. Members that stay are not touched in
either direction. The image needs what mpi-operator asks of one: an SSH server and client. The keys are in the
Secret that the annotation `batuta.dev/ssh-secret` names, else NAME-ssh; where there is none, the image has to
bring them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import (
    CONFIG_MAP,
    JOB,
    MPI_JOB,
    Change,
    Child,
    ChildKind,
    FollowUp,
    JobStatus,
    JobType,
    Manifest,
    Observed,
    Run,
    Update,
    metadata,
    sealed,
)
from batuta.backends.kube.jobtypes.pod_template import (
    LAUNCHER,
    WORKER,
    EnvVar,
    host_of,
    labels_of,
    launcher_job,
    member_pods,
    members_service,
    pod_template,
    run_env,
)
from batuta.backends.kube.jobtypes.status import is_ready, members, replica_by_label, status_of_batch
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.unified_job.model import UnifiedJob

INDEX_LABEL: Final = "training.kubeflow.org/replica-index"
_DISCOVERY: Final = ("--host-discovery-script", "discover_hosts.sh")
HOSTS_DIR: Final = "/etc/batuta/hosts"
SCRIPT: Final = "discover-hosts.sh"
HOSTFILE: Final = "hostfile"
SSH_DIR: Final = "/root/.ssh"
_SSHD: Final = ["/usr/sbin/sshd", "-De"]
_SSH_FILES: Final = (
    ("ssh-privatekey", "id_rsa"),
    ("ssh-publickey", "id_rsa.pub"),
    ("ssh-publickey", "authorized_keys"),
)


class MpiJob(JobType):
    """The type `MPIJob`."""

    name: str = "MPIJob"
    watches: tuple[ChildKind, ...] = (MPI_JOB,)

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        return Change.IN_PLACE if _asks_for_hosts(job) else Change.BY_RESTART

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        return [_child(job, run)] if run.target else []

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
    each = job.spec.replica_spec.processes_per_replica
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
    marks, size = manifest["metadata"]["annotations"], {"Worker": {"replicas": run.target}}
    resize = {"metadata": {"annotations": marks}, "spec": {"mpiReplicaSpecs": size}}
    return Child(MPI_JOB, manifest, Update.KEEP, resume=resize)


MPI: Final = MpiJob()


class ElasticHorovod(JobType):
    """Horovod's elastic mode."""

    name: str = "ElasticHorovod"
    watches: tuple[ChildKind, ...] = (JOB,)

    def change(self, job: UnifiedJob, run: Run, target: int) -> Change:
        return Change.IN_PLACE

    def children(self, job: UnifiedJob, run: Run) -> list[Child]:
        service = members_service(job, {})
        if not run.target:
            return [service]
        workers = member_pods(job, run, command=_SSHD)
        for worker in workers:
            _mount_keys(job, worker.manifest["spec"])
        return [service, *workers, _launcher(job, run)]

    def follow(self, job: UnifiedJob, run: Run, observed: Observed) -> FollowUp:
        if not run.target:
            return FollowUp()
        hosts = _running(job, run, observed.pods)
        launchers = members(observed.pods, run, LAUNCHER)
        return FollowUp((_hosts_map(job, run, hosts),), tuple(pod.metadata.name for pod in launchers))

    def status(self, job: UnifiedJob, run: Run, observed: Observed) -> JobStatus:
        """The launcher decides: Horovod copes with workers that fail, as long as enough are left."""
        return status_of_batch(observed, JOB, run, members(observed.pods, run, LAUNCHER))

    def replica_of(self, pod: Pod) -> int | None:
        return replica_by_label(pod)


def _running(job: UnifiedJob, run: Run, pods: Sequence[Pod]) -> list[str]:
    reachable = [pod for pod in members(pods, run) if is_ready(pod) and not pod.metadata.deletion_timestamp]
    found = {index: pod.metadata.name for pod in reachable if (index := replica_by_label(pod)) is not None}
    return [host_of(job, found[index]) for index in sorted(found) if index < run.target]


def _hosts_map(job: UnifiedJob, run: Run, hosts: Sequence[str]) -> Child:
    slots = job.spec.replica_spec.processes_per_replica
    lines = "".join(f"echo {host}:{slots}\n" for host in hosts)
    hostfile = "".join(f"{host} slots={slots}\n" for host in hosts)
    meta = metadata(job, _hosts_name(job), labels_of(job, run, LAUNCHER), {})
    body = {"metadata": meta, "data": {SCRIPT: f"#!/bin/sh\n{lines}", HOSTFILE: hostfile}}
    return Child(CONFIG_MAP, sealed(CONFIG_MAP, body), Update.APPLY)


def _launcher(job: UnifiedJob, run: Run) -> Child:
    each = job.spec.replica_spec.processes_per_replica
    # What a resize in place would change is left at what the start had: a launcher is not replaced for it.
    first = Run(run.first_of(), run.start)
    env = run_env(job, first) | {
        "BATUTA_NUM_PROCS": str(first.target * each),
        "BATUTA_DISCOVERY_SCRIPT": f"{HOSTS_DIR}/{SCRIPT}",
        "BATUTA_HOSTFILE": f"{HOSTS_DIR}/{HOSTFILE}",
    }
    template = pod_template(job, run, LAUNCHER, dict(env))
    spec: Manifest = template["spec"]
    spec["restartPolicy"] = "Never"
    # optional: the pod may start before the first list is written; the script appears once there is one
    hosts = {"name": _hosts_name(job), "defaultMode": 0o555, "optional": True}
    spec["volumes"].append({"name": "batuta-hosts", "configMap": hosts})
    spec["containers"][0]["volumeMounts"].append({"name": "batuta-hosts", "mountPath": HOSTS_DIR})
    _mount_keys(job, spec)
    return launcher_job(job, run, template)


def _mount_keys(job: UnifiedJob, spec: Manifest) -> None:
    secret = job.metadata.annotations.get(names.SSH_SECRET) or f"{job.metadata.name}-ssh"
    items: list[dict[str, Any]] = [{"key": key, "path": path} for key, path in _SSH_FILES]
    source = {"secretName": secret, "defaultMode": 0o600, "items": items, "optional": True}
    spec["volumes"].append({"name": "batuta-ssh", "secret": source})
    spec["containers"][0]["volumeMounts"].append({"name": "batuta-ssh", "mountPath": SSH_DIR})


def _hosts_name(job: UnifiedJob) -> str:
    return f"{job.metadata.name}-hosts"


ELASTIC_HOROVOD: Final = ElasticHorovod()
