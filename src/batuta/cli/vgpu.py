"""`batuta vgpu`: create, show and damage virtual GPUs, and run programs on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import HomeOption, Output, OutputOption
from batuta.cli.output import DASH, Column, format_mib, print_result, print_stderr, print_table
from batuta.cli.verbs import CommandGroup
from batuta.spec.problem import InputError, Problem

app = typer.Typer(cls=CommandGroup, name="vgpu", no_args_is_help=True, rich_markup_mode=None)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file that the virtual GPUs live in.")]
NodeArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Their file, or the name of a node of batuta up --virtual.")
]

if TYPE_CHECKING:
    from batuta.gpu.vgpu.snapshot import VirtualGpu


@app.callback()
def vgpu() -> None:
    """Make virtual GPUs, look at them, inject faults, run programs on them.

    CUDA and NVML programs take them for real: memory, processes, kernels that take time. Nothing is computed.

    Example: batuta vgpu create --gpus 4 --model T4 node.vgpu, then batuta vgpu run node.vgpu -- nvitop
    """


@app.command()
def create(
    file: FileArgument,
    gpus: Annotated[int, typer.Option("--gpus", help="How many.", metavar="N")] = 1,
    model: Annotated[str, typer.Option("--model", help="What they are: T4, A100, H100 …")] = "T4",
    memory: Annotated[str | None, typer.Option("--memory", help="Of each, as in 16GiB; default: the model's.")] = None,
    numa: Annotated[int, typer.Option("--numa", help="NUMA nodes that they are on, in equal parts.", metavar="N")] = 1,
    kernel_us: Annotated[
        float, typer.Option("--kernel-us", help="Microseconds a launch takes, for each wave of threads.")
    ] = 20.0,
    context_memory: Annotated[
        str | None,
        typer.Option("--context-memory", help="What a context takes, as in 300MiB; default: nothing."),
    ] = None,
    label: Annotated[str, typer.Option("--label", help="The same label gives the same UUIDs; default: new ones.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Make a file with virtual GPUs.

    Example: batuta vgpu create --gpus 4 --memory 16GiB --model T4 node.vgpu
    """
    from batuta.gpu.vgpu.device_file import Machine
    from batuta.gpu.vgpu.device_file import create_device_file as make
    from batuta.gpu.vgpu.models import find_model

    problems: list[Problem] = []
    memory_bytes = _parse_bytes(memory, "--memory", problems)
    context_bytes = _parse_bytes(context_memory, "--context-memory", problems)
    try:
        found = find_model(model)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    machine = Machine(found, gpus, memory_bytes, numa, round(kernel_us * 1000), context_bytes, label)
    if problems:
        raise InputError([*problems, *machine.problems()])
    make(file, machine, overwrite=force)
    print_stderr(f"{gpus} × {found.name} in {file}; batuta vgpu run {file} -- COMMAND uses them")


def _parse_bytes(text: str | None, option: str, problems: list[Problem]) -> int:
    from batuta.spec.quantity import parse_memory_mib

    try:
        return 0 if text is None else parse_memory_mib(text) << 20
    except InputError as error:
        problems.extend(replace(one, message=f"{option}: {one.message}") for one in error.problems)
        return 0


@app.command()
def status(file: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show virtual GPUs and the processes on them.

    Example: batuta vgpu status node.vgpu, or batuta vgpu status node-0
    """
    from batuta.gpu.vgpu.snapshot import read_gpus

    print_result(read_gpus(_device_file(file, home)), output, print_gpus)


@app.command()
def inject(
    file: NodeArgument,
    gpu: Annotated[int, typer.Option("--gpu", help="Which one, from 0.", metavar="N")],
    xid: Annotated[
        int | None,
        typer.Option("--xid", help="An Xid error; 79 takes the GPU off the bus, 48 and 95 end its contexts."),
    ] = None,
    temperature: Annotated[
        int | None, typer.Option("--temperature", help="In °C, whatever the load; 0: as the load says.")
    ] = None,
    ecc_corrected: Annotated[
        int, typer.Option("--ecc-corrected", help="So many more corrected memory errors.", metavar="N")
    ] = 0,
    ecc_uncorrected: Annotated[
        int, typer.Option("--ecc-uncorrected", help="So many more uncorrected ones.", metavar="N")
    ] = 0,
    remapped_rows: Annotated[
        int, typer.Option("--remapped-rows", help="So many more rows replaced, in effect after a reset.")
    ] = 0,
    remap_failed: Annotated[
        bool, typer.Option("--remap-failed", help="No spare row is left where one is needed.")
    ] = False,
    link_down: Annotated[int | None, typer.Option("--link-down", help="An NVLink link fails.", metavar="LINK")] = None,
    heal: Annotated[
        bool,
        typer.Option("--heal", help="First all is well again, as after a reset; lifetime counters stay."),
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Where the driver's line about an Xid goes; default: the log that its server reads.",
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Harm a virtual GPU, or heal it.

    Examples:

      batuta vgpu inject node.vgpu --gpu 1 --temperature 95

      batuta vgpu inject node-0 --gpu 1 --xid 79
    """
    from batuta.bootstrap.local_facts import virtual_kernel_log
    from batuta.client.address import find_home
    from batuta.gpu.vgpu.inject import FaultSpec
    from batuta.gpu.vgpu.inject import inject as harm_it

    harm = FaultSpec(
        xid=xid,
        temperature_c=temperature,
        corrected=ecc_corrected,
        uncorrected=ecc_uncorrected,
        remapped_rows=remapped_rows,
        remap_failed=remap_failed,
        link_down=link_down,
        heal=heal,
    )
    found = _device_file(file, home)
    if log is None and found != file:
        log = virtual_kernel_log(find_home(home))
    harm_it(found, gpu, harm, log)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    file: NodeArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="The program and its arguments.")],
    home: HomeOption = None,
) -> None:
    """Run a program that sees the virtual GPUs and no others.

    Example: batuta vgpu run node.vgpu -- python train.py, or batuta vgpu run node-0 -- nvitop
    """
    from batuta.gpu.native_libraries import vgpu_environment
    from batuta.gpu.vgpu.device_file import open_device_file

    file = _device_file(file, home)
    with open_device_file(file):
        pass  # refuses a file of another kind before the program starts
    if command[0] == "--":
        command = command[1:]
    if not command:
        raise InputError.of("run what?", fix="as in batuta vgpu run node.vgpu -- nvitop")
    variables = vgpu_environment(file)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        raise InputError.of(f"cannot run {command[0]}: {error.strerror}") from error


def _device_file(named: Path, home: Path | None) -> Path:
    """Return the path itself, or the device file of the virtual node of this name in the state directory."""
    from batuta.bootstrap.local_facts import node_devices
    from batuta.client.address import find_home

    if named.exists() or named.name != str(named):
        return named
    of_node = node_devices(find_home(home), str(named))
    return of_node if of_node.exists() else named


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


def print_gpus(gpus: Sequence[VirtualGpu]) -> None:
    """Print the GPUs, then the processes on them."""
    print_table(_GPUS, [_gpu_row(gpu) for gpu in gpus])
    rows = [
        (
            str(gpu.index),
            str(one.pid),
            format_mib(one.used_bytes),
            format_mib(one.peak_bytes),
            f"{one.launches:,}",
        )
        for gpu in gpus
        for one in gpu.processes
    ]
    typer.echo()
    print_table(_PROCESSES, rows, "no processes")


def _gpu_row(gpu: VirtualGpu) -> tuple[str, ...]:
    return (
        str(gpu.index),
        gpu.name,
        f"{gpu.temperature_c}C",
        f"{gpu.power_w:.0f}/{gpu.power_limit_w:.0f}W",
        f"{gpu.used_bytes >> 20}/{format_mib(gpu.memory_bytes)}",
        f"{gpu.utilization:.0%}",
        str(gpu.numa_node),
        str(gpu.ecc_uncorrected),
        f"{gpu.links_up}/{gpu.links}" if gpu.links else DASH,
        "lost" if gpu.lost else "memory failed" if gpu.memory_failed else "ok",
    )
