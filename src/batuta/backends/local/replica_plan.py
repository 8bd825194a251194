"""Plans the replicas of a placement: the rank, GPUs, environment, host list and files of each.

One replica per `gpus_per_replica` GPUs, in the order of the placement; one per span of a CPU-only job. Jobs
that start their own workers (`mpi`, `horovod-elastic`) have one process tree for all: rank 0's, with the GPUs
of all. They find, beside the usual variables:

| variable | |
|---|---|
| `BATUTA_NUM_PROCS` | how many workers to start: one per GPU, or per replica of a CPU-only job |
| `BATUTA_HOSTFILE` | `localhost slots=N`, for `mpirun --hostfile` and `horovodrun --hostfile` |
| `BATUTA_DISCOVERY_SCRIPT` | prints `localhost:N`, for `horovodrun --host-discovery-script` |
| `OMPI_MCA_orte_default_hostfile`, `PRTE_MCA_prte_default_hostfile` | the same file, for Open MPI 4 and 5 |
| `HYDRA_HOST_FILE`, `I_MPI_HYDRA_HOST_FILE` | the same in MPICH's words, for MPICH and Intel MPI |
| `OMPI_ALLOW_RUN_AS_ROOT`, `…_CONFIRM` | 1 when the server runs as root, where Open MPI would refuse |

All nodes of local mode are this machine, and both programs would reach any other name than `localhost` by
ssh. So a job's nodes are one host here, with the slots of all of them. A file is replaced as a whole: Horovod
runs the script every second.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from batuta.backends.local.addresses import node_address
from batuta.backends.local.containers import Container, ContainerRuntimes, container_env, in_container, mounts_of
from batuta.backends.local.job_files import JobFiles, RunRecord
from batuta.backends.local.limits import LocalLimits
from batuta.backends.local.mounts import CannotMount, lock_folder, view_of
from batuta.backends.local.runner_protocol import ReplicaSpec
from batuta.backends.local.tenants import Tenants, UnixAccount, WrongAccount
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import Job, JobKind
from batuta.spec.replica_env import ReplicaContext, build_run_env, setup_env_changes
from batuta.spec.skypilot_keys import image_of
from batuta.spec.task import Task


@dataclass(frozen=True, slots=True)
class ReplicaGpus:
    """The GPUs of one replica that is about to start."""

    job: Job
    node: NodeName
    gpus: tuple[int, ...]  # by their numbers on the node
    run_id: str
    folder: Path  # of this run, of all its replicas; new at each start: for what the replica reads
    own: Path | None = None  # where the replica itself may write, if not there
    account: UnixAccount | None = None  # that it runs as; None: as the server


class GpuInjector(Protocol):
    """What a replica needs to find its GPUs, and to be held to its share of them. For the engine's thread."""

    def is_ready(self) -> bool:
        """Whether replicas may start. The code that makes it ready wakes the backend."""
        ...

    def inject(self, replica: ReplicaGpus, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with what is needed beside it. OSError or ValueError when that cannot be had now."""
        ...


class HostGpus:
    """GPUs that every program finds by itself."""

    def is_ready(self) -> bool:
        return True

    def inject(self, replica: ReplicaGpus, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)


Device: TypeAlias = str | int
_NEEDS_BASHRC = re.compile(r"(?:^|[\s;&|('\"`/])conda(?=$|[\s;&|)'\"`])|\.bashrc\b", re.MULTILINE)
_BASHRC: Final = "bashrc.sh"
_READ_BASHRC: Final = """\
unset BASH_ENV
while IFS= read -r -d '' batuta_entry; do
  batuta_name=${batuta_entry%%=*}
  case $batuta_name in
    PATH)
      IFS=: read -r -a batuta_parts <<<"${batuta_entry#*=}"
      for batuta_part in "${batuta_parts[@]}"; do
        case ":$PATH:" in *":$batuta_part:"*) ;; *) PATH=$PATH:$batuta_part ;; esac
      done ;;
    OLDPWD) ;;
    *)
      if [[ $batuta_name =~ ^[A-Za-z_][A-Za-z0-9_]*$ && ! -v $batuta_name ]]; then
        export "$batuta_entry"
      fi ;;
  esac
done < <(timeout 10 bash -ic 'env -0 >&3' 3>&1 >/dev/null 2>&1 </dev/null)
batuta_conda=$(command -v conda || echo "${CONDA_EXE:-}")
batuta_conda=${batuta_conda%/*/*}/etc/profile.d/conda.sh
if [ -f "$batuta_conda" ]; then . "$batuta_conda"; fi
unset batuta_entry batuta_name batuta_parts batuta_part batuta_conda
"""
"""What bash reads before a script that counts on ~/.bashrc or on conda, as SkyPilot's scripts may.

It is read by a shell of its own, for most of them end early in one that is not interactive, and may do
anything. What it exports is taken over, but wins over nothing; what it has in PATH comes last."""
_LED_BY_ONE = frozenset((JobKind.MPI, JobKind.HOROVOD_ELASTIC))


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine gives to jobs."""

    addresses: Mapping[NodeName, int]  # each node's index, which gives it its address
    devices: Mapping[NodeName, Sequence[Device]]
    inherited: Mapping[str, str]  # of the server's environment
    doorbell: Path
    sdk: Path  # for PYTHONPATH: scripts in environments of their own find the SDK there
    gpu_injector: GpuInjector = field(default_factory=HostGpus)
    containers: ContainerRuntimes = field(default_factory=ContainerRuntimes)
    limits: LocalLimits | None = None  # None: replicas have none
    tenants: Tenants | None = None  # who jobs run as; None: all as the user of the server

    def knows(self, placement: Placement) -> bool:
        return all(
            span.node in self.addresses and max(span.gpus, default=-1) < len(self.devices[span.node])
            for span in placement.spans
        )


def workdir_of(task: Task, files: JobFiles) -> Path:
    return Path(task.workdir) if task.workdir else files.work


def rank_count(job: Job, placement: Placement) -> int:
    return 1 if job.kind in _LED_BY_ONE else len(placement.workers(job.gpus_per_replica))


def plan_replicas(
    machine: Machine, files: JobFiles, task: Task, job: Job, record: RunRecord, time_limit_s: float | None
) -> list[ReplicaSpec]:
    """What to start, by rank. Writes the host lists; OSError when that is not possible."""
    workers = record.placement.workers(job.gpus_per_replica)
    ips = tuple(node_address(machine.addresses[worker.node]) for worker in workers)
    led_by_one = job.kind in _LED_BY_ONE
    account = account_for(machine, files, task, job)
    more = write_hosts(files.shown(record.number), record.placement, is_root=_is_root(account)) if led_by_one else {}
    specs = []
    for rank in range(record.ranks):
        place = ReplicaContext(
            job_id=job.id,
            rank=rank,
            node_ips=ips,
            gpus=tuple(machine.devices[workers[rank].node][gpu] for gpu in workers[rank].gpus),
            master_port=record.port,
            checkpoint_dir=str(files.checkpoints),
            progress_file=str(files.progress),
            control_dir=str(files.control(record.number)),
            restart=record.number,
            user=job.user,
        )
        in_image = bool(image_of(task.image_id))
        inherited = container_env(machine.inherited) if in_image else machine.inherited
        sdk = machine.sdk
        if account is not None and machine.tenants is not None:
            inherited, sdk = account.environment(machine.inherited), machine.tenants.sdk
        env = build_run_env(task, place, inherited) | more
        if not in_image:  # an image may have a PYTHONPATH of its own, which this would hide
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(sdk))))
        if led_by_one:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(
                str(machine.devices[span.node][gpu]) for span in record.placement.spans for gpu in span.gpus
            )
        replica = ReplicaGpus(
            *(job, workers[rank].node, workers[rank].gpus, record.run_id(rank)),
            *(files.shown(record.number), files.control(record.number), account),
        )
        # A CPU-only job has no GPU to be shown.
        if not in_image and not job.cpu_only:
            env = machine.gpu_injector.inject(replica, env)
        specs.append(_spec(machine, files, task, record, rank, replica, env, time_limit_s))
    return specs


def account_for(machine: Machine, files: JobFiles, task: Task, job: Job) -> UnixAccount | None:
    """Return the account that a job runs as; None: that of the server. CannotMount when it can never run so."""
    if machine.tenants is None:
        return None
    try:
        account = machine.tenants.account(job.user)
    except WrongAccount as problem:
        raise CannotMount(str(problem)) from problem
    if account is None:
        if files.tenant is not None:
            raise CannotMount(f"it began as user id {files.tenant.uid}, which {job.user} is not any more")
        return None
    if files.tenant is None or files.tenant.uid != account.uid:
        raise CannotMount(f"it did not begin as the unix user {account.name}: submit it again")
    if image_of(task.image_id):
        raise CannotMount(NO_IMAGES)
    return account


NO_IMAGES: Final = "a container would run as root: jobs of other users have none on a server of root's"


def _is_root(account: UnixAccount | None) -> bool:
    return account is None and os.geteuid() == 0


def _spec(
    machine: Machine,
    files: JobFiles,
    task: Task,
    record: RunRecord,
    rank: int,
    replica: ReplicaGpus,
    env: dict[str, str],
    time_limit_s: float | None,
) -> ReplicaSpec:
    job, account = replica.job, replica.account
    nodes = len(record.placement.workers(job.gpus_per_replica)) if job.kind in _LED_BY_ONE else 1
    setup = task.setup if task.setup.strip() else None
    spec = ReplicaSpec(
        run_id=record.run_id(rank),
        run=task.run,
        cwd=workdir_of(task, files),
        log=files.log(rank),
        env=env,
        setup=setup,
        setup_env=setup_env_changes(env),
        setup_marker=None if setup is None else files.setup_marker(rank),
        setup_lock=None if setup is None else files.setup_lock(replica.node),
        setup_awaits=[] if setup is None else [files.setup_marker(other) for other in range(record.ranks)],
        folders=files.replica_folders(with_setup=setup is not None),
        grace_s=task.elastic.grace_s,
        time_limit_s=time_limit_s,
        # All replicas are signalled, but a request has one number.
        checkpoint_request=files.control(record.number) / "checkpoint-request" if rank == 0 else None,
        doorbell=machine.doorbell,
        limits=None if machine.limits is None else machine.limits.of(task, replica.run_id, len(replica.gpus), nodes),
        user=None if account is None else account.for_runner(),
        scripts=None if account is None else files.scripts(record.number, rank),
    )
    if image_of(task.image_id):
        return _in_container(machine, files, task, record, rank, spec)
    if "BASH_ENV" not in env and _NEEDS_BASHRC.search(f"{task.setup}\n{task.run}"):
        before = files.scripts(record.number, rank) / _BASHRC
        spec = replace(spec, env={**env, "BASH_ENV": str(before)}, files={_BASHRC: _READ_BASHRC})
    view = view_of(task, spec.cwd, env.get("HOME") or str(Path.home()), is_root=_is_root(account))
    if not view:
        return spec
    return replace(spec, view=view, view_locks=lock_folder() if files.tenant is None else files.tenant.mount_points())


def _in_container(
    machine: Machine, files: JobFiles, task: Task, record: RunRecord, rank: int, spec: ReplicaSpec
) -> ReplicaSpec:
    """The same replica in a container of the task's image. ValueError when there is no runtime any more."""
    runtime = machine.containers.find()
    if runtime is None:
        raise ValueError(machine.containers.rules().refusal)
    is_real = any(isinstance(gpu, str) for gpus in machine.devices.values() for gpu in gpus)
    container = Container(
        spec.run_id,
        image_of(task.image_id),
        files.replica(record.number, rank),
        nvidia=is_real and bool(spec.env.get("CUDA_VISIBLE_DEVICES")),
        most_processes=spec.limits["processes"] if spec.limits and os.geteuid() == 0 else None,
        most_memory_bytes=spec.limits["memory_bytes"] if spec.limits and os.geteuid() == 0 else None,
    )
    wanted = [("~/sky_workdir", str(spec.cwd))]
    wanted += [(mount.target.rstrip("/"), mount.source) for mount in task.file_mounts]
    mounts = mounts_of([files.folder, spec.cwd], wanted, spec.cwd, runtime.home(container))
    container = replace(container, mounts=mounts)
    # Each container is a new file system: its setup is done in each run, and not once for all.
    prepared = [files.replica(record.number, other) / "prepared" for other in range(record.ranks)]
    spec = replace(spec, setup_marker=prepared[rank], setup_lock=None, setup_awaits=prepared)
    return in_container(spec, runtime, container, machine.containers.client_env)


def write_hosts(control: Path, placement: Placement, *, is_root: bool = False) -> dict[str, str]:
    """Writes the host lists of a job that starts its own workers; the variables that name them."""
    slots = placement.units  # one for each GPU, or for each replica of a CPU-only job
    open_mpi, mpich, script = control / "hostfile", control / "hostfile.mpich", control / "discover-hosts.sh"
    for path, text, mode in (
        (open_mpi, f"localhost slots={slots}\n", 0o644),
        (mpich, f"localhost:{slots}\n", 0o644),  # as Intel MPI and Horovod want it, too
        (script, f"#!/bin/sh\nexec cat {shlex.quote(str(mpich.absolute()))}\n", 0o755),
    ):
        draft = path.with_name(f"{path.name}.new")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(mode)
        os.replace(draft, path)
    env = {
        "BATUTA_NUM_PROCS": str(slots),
        "BATUTA_HOSTFILE": str(open_mpi),
        "BATUTA_DISCOVERY_SCRIPT": str(script),
        "OMPI_MCA_orte_default_hostfile": str(open_mpi),
        "PRTE_MCA_prte_default_hostfile": str(open_mpi),
        "HYDRA_HOST_FILE": str(mpich),
        "I_MPI_HYDRA_HOST_FILE": str(mpich),
    }
    if is_root:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env
