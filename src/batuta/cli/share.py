"""batuta share: limits on what containers have of a GPU: try them out, look at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.sections import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from batuta.gpu.share.counters import ContainerShare

app = typer.Typer(cls=Group, name="share", no_args_is_help=True, rich_markup_mode=None)

_ROOT = Path("/var/lib/batuta/share")


@app.callback()
def share() -> None:
    """Try out limits on GPU memory and compute, and see who has how much.

    Several containers on one GPU are held to their parts by a library that is loaded into their programs.

    Example: batuta share selftest
    """


@app.command()
def selftest(
    gpu: Annotated[int, typer.Option("--gpu", help="On which GPU, from 0.", metavar="N")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Try on a GPU whether limits hold; fails if one does not.

    Every way to allocate and to launch, and shares of device time. Half a minute, on a GPU nobody else uses.

    Example: batuta share selftest, or batuta vgpu run node.vgpu -- batuta share selftest
    """
    from dataclasses import asdict

    from batuta.cli.share_view import print_checks
    from batuta.cli.terminal import print_json
    from batuta.gpu.devices import find_devices
    from batuta.gpu.share.selftest import run_selftest
    from batuta.spec.problem import InputError

    devices = find_devices()
    if not 0 <= gpu < len(devices):
        there = f"there are {len(devices)}" if devices else "there is none"
        raise InputError.of(f"no GPU {gpu}: {there}", fix="batuta vgpu create makes virtual ones")
    checks = list(run_selftest(devices[gpu]))
    if output is Output.JSON:
        print_json([asdict(check) for check in checks])
    else:
        print_checks(checks)
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
    from dataclasses import asdict

    from batuta.cli.share_view import print_containers
    from batuta.cli.terminal import print_json

    found = list(_containers(paths or [_ROOT]))
    if output is Output.JSON:
        print_json([asdict(one) for one in found])
    else:
        print_containers(found)


def _containers(paths: list[Path]) -> Iterator[ContainerShare]:
    """Of a limits file that no process has heeded yet there is no region, and nothing to show."""
    from batuta.gpu.share.counters import read_region
    from batuta.gpu.share.limits import FORMAT, read_limits
    from batuta.spec.problem import InputError

    for path in paths:
        if not path.exists() and path != _ROOT:
            raise InputError.of(f"there is no {path}", fix="name a limits file, a folder or a region")
        files = [one for one in sorted(path.rglob("limits")) if one.is_file()] if path.is_dir() else [path]
        for file in files if path.exists() else ():
            with file.open("rb") as stream:
                is_limits = stream.read(len(FORMAT)) == FORMAT.encode()
            region = read_limits(file).region if is_limits else file
            if region.exists():
                yield read_region(region)
