"""How much of a resource a job takes."""

from __future__ import annotations

from batuta.core.job import Job
from batuta.core.quota import MILLI, counts_gpus

PODS = "pods"
_CPU, _MEMORY = "cpu", "memory"
_BYTES_PER_MIB = 1 << 20


def demand(job: Job, resource: str, gpus: int) -> int:
    """What a job takes of a resource with so many GPUs, in thousandths; 0 for what it does not ask for.

    `gpus` is its size: the replicas of a CPU-only job, which takes no GPUs of any quota.
    """
    if counts_gpus(resource):
        return 0 if job.cpu_only else gpus * MILLI
    if resource == _CPU:
        return job.cpus_milli_per_gpu * gpus
    if resource == _MEMORY:
        return job.memory_mib_per_gpu * gpus * _BYTES_PER_MIB * MILLI
    if resource == PODS:
        return -(-gpus // (job.gpus_per_replica or 1)) * MILLI
    return 0
