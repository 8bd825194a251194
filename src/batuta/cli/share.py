"""`batuta share`: test limits on GPU memory and compute, and show what containers use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from batuta.cli.options import Output, OutputOption, argument, option
from batuta.cli.output import DASH, Column, format_mib, print_result, print_table
from batuta.cli.verbs import CommandGroup
from batuta.gpu.devices import find_devices
from batuta.gpu.share.limits import LIMITS_FORMAT, read_limits
from batuta.gpu.share.region import ContainerShare, DeviceShare, read_region
from batuta.gpu.share.selftest import Check, run_selftest
from batuta.spec.problem import InputError

app = typer.Typer(cls=CommandGroup, name="share", no_args_is_help=True, rich_markup_mode=None)

_ROOT = Path("/var/lib/batuta/share")


@app.callback()
def share() -> None:
    """Try out limits on GPU memory and compute; see how much each process has.

    Several containers on one GPU are held to their parts by a library that is loaded into their programs.

    Example: batuta share selftest
    """


@app.command()
def selftest(
    gpu: Annotated[int, option("On which GPU, from 0.", "N")] = 0, output: OutputOption = Output.TABLE
) -> None:
    """Try on a GPU whether limits hold; fails if one does not.

    Every way to allocate and to launch, and shares of device time, in half a minute on an unused GPU.

    Example: batuta share selftest, or batuta vgpu run node.vgpu -- batuta share selftest
    """
    devices = find_devices()
    if not 0 <= gpu < len(devices):
        there = f"there are {len(devices)}" if devices else "there is none"
        raise InputError.of(f"no GPU {gpu}: {there}", fix="batuta vgpu create makes virtual ones")
    checks = list(run_selftest(devices[gpu]))
    print_result(checks, output, lambda found: print_table(_CHECKS, found))
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


@app.command()
def status(
    paths: Annotated[list[Path] | None, argument("[PATH…]", "Limits files, folders with them, or regions.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what containers may have and have of their GPUs.

    Example: batuta share status /var/lib/batuta/share
    """
    print_result(list(_containers(paths or [_ROOT])), output, print_containers)


def _containers(paths: list[Path]) -> Iterator[ContainerShare]:
    """Return what containers below `paths` use. A limits file that no process has read has no region."""
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


_CHECKS: tuple[Column[Check], ...] = (
    Column("CHECK", lambda check: check.subject),
    Column("RESULT", lambda check: check.verdict, least=20),
    Column("", lambda check: "ok" if check.holds else "FAILS", right=True),
)


def _compute(device: DeviceShare) -> str:
    """Return `30%` for a hard limit, `from 30%` for a soft one, `30-60%` for both, else the weight."""
    hard, soft = device.hard_percent, device.soft_percent
    if soft is not None:
        return f"{soft:.0f}-{hard:.0f}%" if hard is not None else f"from {soft:.0f}%"
    return f"{hard:.0f}%" if hard is not None else f"weight {device.weight}"


_DEVICES: tuple[Column[tuple[str, DeviceShare]], ...] = (
    Column("CONTAINER", lambda own: own[0], least=8),
    Column("GPU", lambda own: own[1].uuid, least=8),
    Column("MEMORY", lambda own: f"{own[1].used_bytes >> 20}/{format_mib(own[1].limit_bytes)}", right=True),
    Column("PEAK", lambda own: format_mib(own[1].peak_bytes), right=True, drop=3),
    Column("REFUSED", lambda own: str(own[1].refusals), right=True, drop=2),
    Column("COMPUTE", lambda own: _compute(own[1]), right=True),
    Column("NOW", lambda own: f"{own[1].rate_percent:.0f}%", right=True),
    Column("LAUNCHES", lambda own: f"{own[1].launches:,}", right=True, drop=4),
    Column("DEVICE TIME", lambda own: f"{own[1].charged_s:.1f}s", right=True, drop=1),
    Column("WAITED", lambda own: f"{own[1].waited_s:.1f}s", right=True, drop=5),
    Column("PIDS", lambda own: " ".join(str(one.pid) for one in own[1].processes) or DASH, least=5),
)


def print_containers(containers: Sequence[ContainerShare]) -> None:
    rows = [(container.container, device) for container in containers for device in container.devices]
    print_table(_DEVICES, rows, "no container is limited here")
