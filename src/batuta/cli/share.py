"""`batuta share`: test limits on GPU memory and compute, and show what containers use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.output import DASH, Column, format_mib, print_result, print_table
from batuta.cli.verbs import CommandGroup
from batuta.spec.problem import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from batuta.gpu.share.region import ContainerShare, DeviceShare
    from batuta.gpu.share.selftest import Check


app = typer.Typer(cls=CommandGroup, name="share", no_args_is_help=True, rich_markup_mode=None)

_ROOT = Path("/var/lib/batuta/share")


@app.callback()
def share() -> None:
    """Try out limits on GPU memory and compute, and see how much each process has.

    Several containers on one GPU are held to their parts by a library that is loaded into their programs.

    Example: batuta share selftest
    """


@app.command()
def selftest(
    gpu: Annotated[int, typer.Option("--gpu", help="On which GPU, from 0.", metavar="N")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Try on a GPU whether limits hold; fails if one does not.

    Every way to allocate and to launch, and shares of device time, in half a minute on an unused GPU.

    Example: batuta share selftest, or batuta vgpu run node.vgpu -- batuta share selftest
    """
    from batuta.gpu.devices import find_devices
    from batuta.gpu.share.selftest import run_selftest

    devices = find_devices()
    if not 0 <= gpu < len(devices):
        there = f"there are {len(devices)}" if devices else "there is none"
        raise InputError.of(f"no GPU {gpu}: {there}", fix="batuta vgpu create makes virtual ones")
    checks = list(run_selftest(devices[gpu]))
    print_result(checks, output, print_checks)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


@app.command()
def status(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH…]", help="Limits files, folders with them, or regions."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what containers may have and have of their GPUs.

    Example: batuta share status /var/lib/batuta/share
    """
    print_result(list(_containers(paths or [_ROOT])), output, print_containers)


def _containers(paths: list[Path]) -> Iterator[ContainerShare]:
    """Return what containers below `paths` use. A limits file that no process has read has no region."""
    from batuta.gpu.share.limits import LIMITS_FORMAT, read_limits
    from batuta.gpu.share.region import read_region

    for path in paths:
        if not path.exists() and path != _ROOT:
            raise InputError.of(f"there is no {path}", fix="name a limits file, a folder or a region")
        files = [one for one in sorted(path.rglob("limits")) if one.is_file()] if path.is_dir() else [path]
        for file in files if path.exists() else ():
            with file.open("rb") as stream:
                is_limits = stream.read(len(LIMITS_FORMAT)) == LIMITS_FORMAT.encode()
            region = read_limits(file).region if is_limits else file
            if region.exists():
                yield read_region(region)


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
    """Print a row for each check of the self-test."""
    print_table(_CHECKS, [(one.subject, one.verdict, "ok" if one.holds else "FAILS") for one in checks])


def print_containers(containers: Sequence[ContainerShare]) -> None:
    """Print a row for each container and GPU."""
    rows = [_device_row(container.container, device) for container in containers for device in container.devices]
    print_table(_CONTAINERS, rows, "no container is limited here")


def _device_row(container: str, device: DeviceShare) -> tuple[str, ...]:
    return (
        container,
        device.uuid,
        f"{device.used_bytes >> 20}/{format_mib(device.limit_bytes)}",
        format_mib(device.peak_bytes),
        str(device.refusals),
        _compute(device),
        f"{device.rate_percent:.0f}%",
        f"{device.launches:,}",
        f"{device.charged_s:.1f}s",
        f"{device.waited_s:.1f}s",
        " ".join(str(one.pid) for one in device.processes) or DASH,
    )


def _compute(device: DeviceShare) -> str:
    """Return `30%` for a hard limit, `from 30%` for a soft one, `30-60%` for both, else the weight."""
    hard, soft = device.hard_percent, device.soft_percent
    if soft is not None:
        return f"{soft:.0f}-{hard:.0f}%" if hard is not None else f"from {soft:.0f}%"
    return f"{hard:.0f}%" if hard is not None else f"weight {device.weight}"
