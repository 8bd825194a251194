"""What an agent sees, as tables: one of GPUs, one of jobs."""

from __future__ import annotations

import typer

from batuta.cli.table import Column, print_table
from batuta.cli.terminal import NOTHING
from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage

_GPUS = (
    Column("GPU", right=True),
    Column("MODEL", least=6),
    Column("UTIL", right=True),
    Column("MEMORY", right=True),
    Column("PCIE", right=True, drop=4),
    Column("NVLINK", right=True, drop=5),
    Column("POWER", right=True, drop=3),
    Column("TEMP", right=True, drop=2),
    Column("JOBS", least=8),
)
_JOBS = (
    Column("JOB", least=8),
    Column("GPUS"),
    Column("UTIL", right=True),
    Column("MEMORY", right=True),
    Column("TYPE", drop=1),
    Column("STAGE", drop=2),
    Column("BOTTLENECK", drop=3),
)


def print_usage(usage: NodeUsage) -> None:
    """Prints both tables."""
    print_table(_GPUS, [_gpu_row(gpu) for gpu in usage.gpus], "no GPUs")
    typer.echo()
    print_table(_JOBS, [_job_row(job) for job in usage.jobs], "no jobs of Batuta on them")


def _gpu_row(gpu: GpuUsage) -> tuple[str, ...]:
    used = NOTHING if gpu.memory_used_mib is None else f"{gpu.memory_used_mib:.0f}"
    return (
        str(gpu.index),
        gpu.model,
        _percent(gpu.utilisation),
        f"{used}/{gpu.memory_mib:.0f}MiB",
        _amount(gpu.pcie_mib_s, "MiB/s"),
        _amount(gpu.nvlink_mib_s, "MiB/s"),
        _amount(gpu.power_w, "W"),
        _amount(gpu.temperature_c, "C"),
        ", ".join(dict.fromkeys(owner.job for owner in gpu.owners)) or NOTHING,
    )


def _job_row(job: JobUsage) -> tuple[str, ...]:
    return (
        job.job,
        ",".join(map(str, job.gpus)),
        _percent(None if job.utilisation is None else job.utilisation.mean),
        _amount(job.memory_mib, "MiB"),
        job.behaviour.activity.value,
        job.behaviour.stage.value,
        job.behaviour.bottleneck.value,
    )


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def _amount(value: float | None, unit: str) -> str:
    return NOTHING if value is None else f"{value:.0f}{unit}"
