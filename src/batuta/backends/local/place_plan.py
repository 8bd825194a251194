"""From a placement to what each replica is told: its rank, its GPUs, its environment, its files.

One replica per `gpus_per_replica` GPUs, in the order of the placement. Jobs that start their own workers
(`mpi`, `horovod-elastic`) have one process tree for all: rank 0's, with the GPUs of all. They find, beside
the usual variables:

| variable | |
|---|---|
| `BATUTA_NUM_PROCS` | how many workers to start: one per GPU |
| `BATUTA_HOSTFILE` | `localhost slots=N`, for `mpirun --hostfile` and `horovodrun --hostfile` |
| `BATUTA_DISCOVERY_SCRIPT` | prints `localhost:N`, for `horovodrun --host-discovery-script` |
| `OMPI_MCA_orte_default_hostfile`, `PRTE_MCA_prte_default_hostfile` | the same file, for Open MPI 4 and 5 |
| `HYDRA_HOST_FILE`, `I_MPI_HYDRA_HOST_FILE` | the same in MPICH's words, for MPICH and Intel MPI |
| `OMPI_ALLOW_RUN_AS_ROOT`, `…_CONFIRM` | 1 when the server runs as root, where Open MPI would refuse |
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from batuta.backends.local.equipment import Equipment, PlainGpus, Seat
from batuta.backends.local.hosts import node_addresses
from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.mpi import HostfileStyle, local_hosts, write_discovery_script, write_hostfile
from batuta.backends.local.processes import ReplicaSpec
from batuta.backends.local.run_record import RunRecord
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import Job, JobKind
from batuta.spec.env import ReplicaPlace, build_run_env
from batuta.spec.task import Task

Device: TypeAlias = str | int
_LED_BY_ONE = frozenset((JobKind.MPI, JobKind.HOROVOD_ELASTIC))


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine gives to jobs."""

    addresses: Mapping[NodeName, int]
    """Each node's index, which gives it its address."""
    devices: Mapping[NodeName, Sequence[Device]]
    """Each node's GPUs as CUDA knows them."""
    inherited: Mapping[str, str]
    """Of the server's environment."""
    doorbell: Path
    log_cap_bytes: int
    equipment: Equipment = field(default_factory=PlainGpus)

    def knows(self, placement: Placement) -> bool:
        return all(
            span.node in self.addresses and max(span.gpus) < len(self.devices[span.node])
            for span in placement.spans
        )


def workdir_of(task: Task, files: JobFiles) -> Path:
    return Path(task.workdir) if task.workdir else files.work


def rank_count(job: Job, placement: Placement) -> int:
    """How many replicas are started."""
    return 1 if job.kind in _LED_BY_ONE else len(placement.workers(job.gpus_per_replica))


def plan_replicas(
    machine: Machine, files: JobFiles, task: Task, job: Job, record: RunRecord, time_limit_s: float | None
) -> list[ReplicaSpec]:
    """What to start, by rank. Writes the host lists; OSError when that is not possible."""
    workers = record.placement.workers(job.gpus_per_replica)
    ips = tuple(node_addresses([machine.addresses[worker.node] for worker in workers]))
    led_by_one = job.kind in _LED_BY_ONE
    more = write_hosts(files.control(record.number), record.placement) if led_by_one else {}
    specs = []
    for rank in range(record.ranks):
        place = ReplicaPlace(
            job_id=job.id,
            rank=rank,
            node_ips=ips,
            gpus=tuple(machine.devices[workers[rank].node][gpu] for gpu in workers[rank].gpus),
            master_port=record.port,
            checkpoint_dir=str(files.checkpoints),
            progress_file=str(files.progress),
            control_dir=str(files.control(record.number)),
            restart=record.number,
        )
        env = build_run_env(task, place, machine.inherited) | more
        if led_by_one:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(
                str(machine.devices[span.node][gpu]) for span in record.placement.spans for gpu in span.gpus
            )
        seat = Seat(
            job, workers[rank].node, workers[rank].gpus, record.run_id(rank), files.control(record.number)
        )
        env = machine.equipment.equip(seat, env)
        specs.append(_spec(machine, files, task, record, rank, workers[rank].node, env, time_limit_s))
    return specs


def _spec(
    machine: Machine,
    files: JobFiles,
    task: Task,
    record: RunRecord,
    rank: int,
    node: NodeName,
    env: dict[str, str],
    time_limit_s: float | None,
) -> ReplicaSpec:
    setup_env = {
        "SKYPILOT_SETUP_NODE_RANK": env["SKYPILOT_NODE_RANK"],
        "SKYPILOT_SETUP_NODE_IPS": env["SKYPILOT_NODE_IPS"],
    }
    setup = task.setup if task.setup.strip() else None
    return ReplicaSpec(
        run_id=record.run_id(rank),
        run=task.run,
        cwd=workdir_of(task, files),
        log=files.log(rank),
        env=env,
        setup=setup,
        setup_env=setup_env,
        setup_marker=None if setup is None else files.setup_marker(node),
        folders=files.premises(with_setup=setup is not None),
        log_cap_bytes=machine.log_cap_bytes,
        grace_s=task.elastic.grace_s,
        time_limit_s=time_limit_s,
        # All replicas are signalled, but a request has one number.
        checkpoint_request=files.control(record.number) / "checkpoint-request" if rank == 0 else None,
        doorbell=machine.doorbell,
    )


def write_hosts(control: Path, placement: Placement) -> dict[str, str]:
    """Writes the host lists of a job that starts its own workers; the variables that name them."""
    hosts = local_hosts(list(placement.counts().values()))
    open_mpi, mpich, script = control / "hostfile", control / "hostfile.mpich", control / "discover-hosts.sh"
    write_hostfile(open_mpi, hosts)
    write_hostfile(mpich, hosts, HostfileStyle.MPICH)
    write_discovery_script(script, hosts)
    env = {
        "BATUTA_NUM_PROCS": str(placement.size),
        "BATUTA_HOSTFILE": str(open_mpi),
        "BATUTA_DISCOVERY_SCRIPT": str(script),
        "OMPI_MCA_orte_default_hostfile": str(open_mpi),
        "PRTE_MCA_prte_default_hostfile": str(open_mpi),
        "HYDRA_HOST_FILE": str(mpich),
        "I_MPI_HYDRA_HOST_FILE": str(mpich),
    }
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env
