"""Virtual GPUs as tables: one of the GPUs, one of the processes on them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from batuta.cli.table import Column, print_table
from batuta.cli.terminal import NOTHING
from batuta.gpu.vgpu.snapshot import Gpu

_GPUS = (
    Column("GPU", right=True),
    Column("NAME", least=8),
    Column("TEMP", right=True),
    Column("POWER", right=True, drop=3),
    Column("MEMORY", right=True),
    Column("UTIL", right=True),
    Column("NUMA", right=True, drop=4),
    Column("ECC", right=True, drop=2),
    Column("LINKS", right=True, drop=5),
    Column("STATE"),
)
_PROCESSES = (
    Column("GPU", right=True),
    Column("PID", right=True),
    Column("MEMORY", right=True),
    Column("PEAK", right=True, drop=1),
    Column("LAUNCHES", right=True, drop=2),
)


def print_gpus(gpus: Sequence[Gpu]) -> None:
    """Prints both tables."""
    print_table(_GPUS, [_gpu_row(gpu) for gpu in gpus])
    rows = [
        (str(gpu.index), str(one.pid), _mib(one.used_bytes), _mib(one.peak_bytes), f"{one.launches:,}")
        for gpu in gpus
        for one in gpu.processes
    ]
    typer.echo()
    print_table(_PROCESSES, rows, "no processes")


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    return (
        str(gpu.index),
        gpu.name,
        f"{gpu.temperature_c}C",
        f"{gpu.power_w:.0f}/{gpu.power_limit_w:.0f}W",
        f"{gpu.used_bytes >> 20}/{_mib(gpu.memory_bytes)}",
        f"{gpu.utilization:.0%}",
        str(gpu.numa_node),
        str(gpu.ecc_uncorrected),
        f"{gpu.links_up}/{gpu.links}" if gpu.links else NOTHING,
        "lost" if gpu.lost else "memory failed" if gpu.memory_failed else "ok",
    )


def _mib(count_bytes: int) -> str:
    return f"{count_bytes >> 20}MiB"
