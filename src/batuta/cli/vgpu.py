"""`batuta vgpu`: create, show and damage virtual GPUs, and run programs on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from batuta.cli.options import HomeOption, Output, OutputOption, argument, flag, option
from batuta.cli.output import DASH, Column, format_mib, print_result, print_stderr, print_table
from batuta.cli.verbs import CommandGroup
from batuta.client.address import find_home
from batuta.gpu.local_nodes import device_path, virtual_log
from batuta.gpu.native_libraries import vgpu_environment
from batuta.gpu.vgpu.device_file import Machine, find_model, open_device_file
from batuta.gpu.vgpu.device_file import create_device_file as make
from batuta.gpu.vgpu.inject import FaultSpec
from batuta.gpu.vgpu.inject import inject as harm_it
from batuta.gpu.vgpu.snapshot import ProcessUse, VirtualGpu, read_gpus
from batuta.spec.problem import InputError, Problem, collect_problems
from batuta.spec.quantity import parse_memory_mib

app = typer.Typer(cls=CommandGroup, name="vgpu", no_args_is_help=True, rich_markup_mode=None)

FileArgument = Annotated[Path, argument("FILE", "The file that the virtual GPUs live in.")]
NodeArgument = Annotated[Path, argument("FILE", "Their file, or the name of a node of batuta up --virtual.")]


@app.callback()
def vgpu() -> None:
    """Make virtual GPUs, look at them, inject faults, run programs on them.

    CUDA and NVML programs take them for real: memory, processes, kernels that take time. Nothing is computed.

    Example: batuta vgpu create --gpus 4 --model T4 node.vgpu, then batuta vgpu run node.vgpu -- nvitop
    """


@app.command()
def create(
    file: FileArgument,
    gpus: Annotated[int, option("How many.", "N")] = 1,
    model: Annotated[str, option("What they are: T4, A100, H100 …")] = "T4",
    memory: Annotated[str | None, option("Of each, as in 16GiB; default: the model's.")] = None,
    numa: Annotated[int, option("NUMA nodes that they are on, in equal parts.", "N")] = 1,
    kernel_us: Annotated[float, option("Microseconds a launch takes, for each wave of threads.")] = 20.0,
    context_memory: Annotated[str | None, option("What a context takes, as in 300MiB; default: nothing.")] = None,
    label: Annotated[str, option("The same label gives the same UUIDs; default: new ones.")] = "",
    force: Annotated[bool, flag("--force", "Replace the file if it exists.")] = False,
) -> None:
    """Make a file with virtual GPUs.

    Example: batuta vgpu create --gpus 4 --memory 16GiB --model T4 node.vgpu
    """
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
    with collect_problems(problems, option):
        return 0 if text is None else parse_memory_mib(text) << 20
    return 0


@app.command()
def status(file: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show virtual GPUs and the processes on them.

    Example: batuta vgpu status node.vgpu, or batuta vgpu status node-0
    """
    print_result(read_gpus(_device_file(file, home)), output, print_gpus)


@app.command()
def inject(
    file: NodeArgument,
    gpu: Annotated[int, option("Which one, from 0.", "N")],
    xid: Annotated[
        int | None, option("An Xid error; 79 takes the GPU off the bus, 48 and 95 end its contexts.")
    ] = None,
    temperature: Annotated[int | None, option("In °C, whatever the load; 0: as the load says.")] = None,
    ecc_corrected: Annotated[int, option("So many more corrected memory errors.", "N")] = 0,
    ecc_uncorrected: Annotated[int, option("So many more uncorrected ones.", "N")] = 0,
    remapped_rows: Annotated[int, option("So many more rows replaced, in effect after a reset.")] = 0,
    remap_failed: Annotated[bool, flag("--remap-failed", "No spare row is left where one is needed.")] = False,
    link_down: Annotated[int | None, option("An NVLink link fails.", "LINK")] = None,
    heal: Annotated[bool, flag("--heal", "First all is well again, as after a reset; lifetime counters stay.")] = False,
    log: Annotated[
        Path | None,
        option("Where the driver's line about an Xid goes; default: the log that its server reads.", "FILE"),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Harm a virtual GPU, or heal it.

    Examples:
      batuta vgpu inject node.vgpu --gpu 1 --temperature 95
      batuta vgpu inject node-0 --gpu 1 --xid 79
    """
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
        log = virtual_log(find_home(home))
    harm_it(found, gpu, harm, log)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    file: NodeArgument,
    command: Annotated[list[str], argument("-- COMMAND…", "The program and its arguments.")],
    home: HomeOption = None,
) -> None:
    """Run a program that sees the virtual GPUs and no others.

    Example: batuta vgpu run node.vgpu -- python train.py, or batuta vgpu run node-0 -- nvitop
    """
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
    if named.exists() or named.name != str(named):
        return named
    of_node = device_path(find_home(home), str(named))
    return of_node if of_node.exists() else named


_GPUS: tuple[Column[VirtualGpu], ...] = (
    Column("GPU", lambda gpu: str(gpu.index), right=True),
    Column("NAME", lambda gpu: gpu.name, least=8),
    Column("TEMP", lambda gpu: f"{gpu.temperature_c}C", right=True),
    Column("POWER", lambda gpu: f"{gpu.power_w:.0f}/{gpu.power_limit_w:.0f}W", right=True, drop=3),
    Column("MEMORY", lambda gpu: f"{gpu.used_bytes >> 20}/{format_mib(gpu.memory_bytes)}", right=True),
    Column("UTIL", lambda gpu: f"{gpu.utilization:.0%}", right=True),
    Column("NUMA", lambda gpu: str(gpu.numa_node), right=True, drop=4),
    Column("ECC", lambda gpu: str(gpu.ecc_uncorrected), right=True, drop=2),
    Column("LINKS", lambda gpu: f"{gpu.links_up}/{gpu.links}" if gpu.links else DASH, right=True, drop=5),
    Column("STATE", lambda gpu: "lost" if gpu.lost else "memory failed" if gpu.memory_failed else "ok"),
)
_PROCESSES: tuple[Column[tuple[VirtualGpu, ProcessUse]], ...] = (
    Column("GPU", lambda own: str(own[0].index), right=True),
    Column("PID", lambda own: str(own[1].pid), right=True),
    Column("MEMORY", lambda own: format_mib(own[1].used_bytes), right=True),
    Column("PEAK", lambda own: format_mib(own[1].peak_bytes), right=True, drop=1),
    Column("LAUNCHES", lambda own: f"{own[1].launches:,}", right=True, drop=2),
)


def print_gpus(gpus: Sequence[VirtualGpu]) -> None:
    print_table(_GPUS, gpus)
    typer.echo()
    print_table(_PROCESSES, [(gpu, process) for gpu in gpus for process in gpu.processes], "no processes")
