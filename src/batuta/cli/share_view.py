"""Sharing as tables: what was tried, and what containers have."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.cli.table import Column, print_table
from batuta.cli.terminal import NOTHING
from batuta.gpu.share.counters import ContainerShare, DeviceShare
from batuta.gpu.share.selftest import Check

_CHECKS = (Column("CHECK"), Column("RESULT", least=20), Column("", right=True))
_CONTAINERS = (
    Column("CONTAINER", least=8),
    Column("GPU", least=8),
    Column("MEMORY", right=True),
    Column("PEAK", right=True, drop=3),
    Column("REFUSED", right=True, drop=2),
    Column("COMPUTE", right=True),
    Column("NOW", right=True),
    Column("LAUNCHES", right=True, drop=4),
    Column("DEVICE TIME", right=True, drop=1),
    Column("WAITED", right=True, drop=5),
    Column("PIDS", least=5),
)


def print_checks(checks: Sequence[Check]) -> None:
    """Prints the table of the self-test."""
    print_table(_CHECKS, [(one.subject, one.verdict, "ok" if one.holds else "FAILS") for one in checks])


def print_containers(containers: Sequence[ContainerShare]) -> None:
    """Prints a line for each container and GPU."""
    rows = [_row(container.container, device) for container in containers for device in container.devices]
    print_table(_CONTAINERS, rows, "no container is limited here")


def _row(container: str, device: DeviceShare) -> tuple[str, ...]:
    return (
        container,
        device.uuid,
        f"{device.used_bytes >> 20}/{_mib(device.limit_bytes)}",
        _mib(device.peak_bytes),
        str(device.refusals),
        _compute(device),
        f"{device.rate_percent:.0f}%",
        f"{device.launches:,}",
        f"{device.charged_s:.1f}s",
        f"{device.waited_s:.1f}s",
        " ".join(str(one.pid) for one in device.processes) or NOTHING,
    )


def _compute(device: DeviceShare) -> str:
    """`30%` is hard, `from 30%` soft, `30-60%` both; without either it is the weight."""
    hard, soft = device.hard_percent, device.soft_percent
    if soft is not None:
        return f"{soft:.0f}-{hard:.0f}%" if hard is not None else f"from {soft:.0f}%"
    return f"{hard:.0f}%" if hard is not None else f"weight {device.weight}"


def _mib(count_bytes: int | None) -> str:
    return NOTHING if count_bytes is None else f"{count_bytes >> 20}MiB"
