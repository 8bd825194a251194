"""ElasticHorovod: worker pods that run sshd, and a launcher that runs the template's command (horovodrun).

The launcher asks `$BATUTA_DISCOVERY_SCRIPT` every second which hosts there are. The script is a ConfigMap
that lists the workers which run; it is written as soon as one comes or goes, and the launcher's kubelet is
nudged to see it at once (by itself it looks every minute or so). A worker that leaves is taken from the list
before its pod is deleted. Members that stay are not touched in either direction.

The image needs what mpi-operator asks of one: an SSH server and client. The keys are in the Secret that the
annotation `batuta.dev/ssh-secret` names, else NAME-ssh; where there is none, the image has to bring them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.batch_status import status_of_batch
from batuta.backends.kube.jobtypes.child import (
    CONFIG_MAP,
    JOB,
    Child,
    ChildKind,
    Manifest,
    Update,
    metadata,
    sealed,
)
from batuta.backends.kube.jobtypes.environment import host_of, run_env
from batuta.backends.kube.jobtypes.job_type import Change, FollowUp, JobStatus, Observed, Run
from batuta.backends.kube.jobtypes.pod_parts import (
    LAUNCHER,
    labels_of,
    launcher_job,
    member_pods,
    members_service,
    pod_template,
)
from batuta.backends.kube.jobtypes.pod_status import is_ready, members, replica_by_label
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.unified_job.model import UnifiedJob

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


class ElasticHorovod:
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
    """The hosts that stay and can be reached, by replica."""
    found = {
        index: pod.metadata.name
        for pod in members(pods, run)
        if (index := replica_by_label(pod)) is not None
        and index < run.target
        and is_ready(pod)
        and not pod.metadata.deletion_timestamp
    }
    return [host_of(job, found[index]) for index in sorted(found)]


def _hosts_map(job: UnifiedJob, run: Run, hosts: Sequence[str]) -> Child:
    slots = job.spec.replica_spec.gpus_per_replica
    lines = "".join(f"echo {host}:{slots}\n" for host in hosts)
    body = {
        "metadata": metadata(job, _hosts_name(job), labels_of(job, run, LAUNCHER), {}),
        "data": {
            SCRIPT: f"#!/bin/sh\n{lines}",
            HOSTFILE: "".join(f"{host} slots={slots}\n" for host in hosts),
        },
    }
    return Child(CONFIG_MAP, sealed(CONFIG_MAP, body), Update.APPLY)


def _launcher(job: UnifiedJob, run: Run) -> Child:
    each = job.spec.replica_spec.gpus_per_replica
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
