"""How much of a resource a job takes."""

from __future__ import annotations

from batuta.core.job import Job
from batuta.core.quota import MILLI

ALL_GPUS = "batuta.dev/gpus"
"""Counts every GPU of a job, whatever else counts it too."""
PODS = "pods"
_CPU, _MEMORY = "cpu", "memory"
_BYTES_PER_MIB = 1 << 20


def counts_gpus(resource: str) -> bool:
    """Whether quota in this resource is counted in GPUs."""
    return resource in (ALL_GPUS, "gpu") or resource.endswith("/gpu")


def demand(job: Job, resource: str, gpus: int) -> int:
    """What a job takes of a resource with so many GPUs, in thousandths; 0 for what it does not ask for."""
    if counts_gpus(resource):
        return gpus * MILLI
    if resource == _CPU:
        return job.cpus_milli_per_gpu * gpus
    if resource == _MEMORY:
        return job.memory_mib_per_gpu * gpus * _BYTES_PER_MIB * MILLI
    if resource == PODS:
        return -(-gpus // job.gpus_per_replica) * MILLI
    return 0
