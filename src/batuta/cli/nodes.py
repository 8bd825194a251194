"""`batuta nodes` and `batuta gpus`: list nodes and GPUs, their jobs and their health."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from batuta.apitypes.resources import Gpu, GpuTenant, HealthShown, Node
from batuta.cli import output as out
from batuta.cli.options import HomeOption, NodeArgument, Output, OutputOption, connect, option
from batuta.cli.output import DASH, Cells, Column
from batuta.cli.verbs import CommandGroup
from batuta.client.connection import Connection

app = typer.Typer(cls=CommandGroup, name="nodes", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def nodes(ctx: typer.Context, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List nodes; take them out of service and back.

    Examples:
      batuta nodes
      batuta nodes drain node-1
      batuta nodes mended node-1 --gpu 3
    """
    if ctx.invoked_subcommand is None:
        list_nodes(output, home)


@app.command(name="list")
def list_nodes(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List the nodes, how many of their GPUs are used, and what is wrong with which.

    Example: batuta nodes list -o json
    """
    with connect(home) as client:
        out.print_result(client.nodes(), output, _print_nodes)


@app.command()
def cordon(node: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Start nothing new on a node; what runs there stays.

    Example: batuta nodes cordon node-1
    """
    _change(home, output, lambda client: client.cordon(node))


@app.command()
def uncordon(node: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Put a node back into service; a node that was not cordoned is healthy by your word.

    Example: batuta nodes uncordon node-1
    """
    _change(home, output, lambda client: client.uncordon(node))


@app.command()
def drain(node: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Cordon a node and move away what runs there, with a checkpoint.

    Example: batuta nodes drain node-1
    """
    _change(home, output, lambda client: client.drain(node))


@app.command()
def mended(
    node: NodeArgument,
    gpu: Annotated[int | None, option("Only this GPU was ill; default: the node.", "N", min=0)] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Say that what a node or GPU needed is done: it is tested, and comes back after its probation.

    Examples:
      batuta nodes mended node-1
      batuta nodes mended node-1 --gpu 3
    """
    _change(home, output, lambda client: client.mended(node, gpu))


def _change(home: Path | None, output: Output, change: Callable[[Connection], Node]) -> None:
    with connect(home) as client:
        out.print_result((change(client),), output, _print_nodes)


def gpus(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show every GPU, and which job has it.

    Example: batuta gpus
    """
    with connect(home) as client:
        found = [(node, gpu) for node in client.nodes() for gpu in node.gpus]
        names = {job.id: job.label for job in client.jobs(active=True)}
    if output is Output.JSON:
        out.print_json(
            [{"node": node.name, "state": node.state, "type": node.gpu_type} | asdict(gpu) for node, gpu in found]
        )
        return
    columns: tuple[Column[tuple[Node, Gpu]], ...] = (
        Column("NODE", lambda own: own[0].name),
        Column("GPU", lambda own: str(own[1].index), right=True),
        Column("TYPE", lambda own: own[0].gpu_type),
        Column("STATE", lambda own: out.state_text(_gpu_state(*own))),
        Column("BUSY", lambda own: out.format_number(own[1].utilisation, ".0%"), right=True, drop=1),
        Column("JOBS", lambda own: ", ".join(_tenant(one, names) for one in own[1].jobs) or DASH, least=12),
    )
    out.print_table(columns, found, "there are no GPUs")


def _gpu_state(node: Node, gpu: Gpu) -> str:
    if not gpu.healthy:
        return "unhealthy"
    return node.state if node.state != "ready" else "used" if gpu.jobs else "free"


def _tenant(tenant: GpuTenant, names: dict[str, str]) -> str:
    """Return the name of a job, with its share of the GPU."""
    share, name = tenant.share, names.get(tenant.id, tenant.id)
    if share is None:
        return name
    parts = [f"{share.compute_percent}%"] if share.compute_percent else []
    parts += [f"{share.memory_mib} MiB"] if share.memory_mib else []
    return f"{name} [{', '.join(parts)}]"


def _cpus(node: Node) -> str:
    """Return `3/16`: CPUs that its jobs request, and all; `–` where CPUs are not counted."""
    total, free = node.cpu.total, node.cpu.free
    return DASH if total is None or free is None else f"{total - free:g}/{total:g}"


def _jobs_on(node: Node) -> str:
    return ", ".join(dict.fromkeys((*(job.id for gpu in node.gpus for job in gpu.jobs), *node.cpu.jobs))) or DASH


_NODES: tuple[Column[Node], ...] = (
    Column("NODE", lambda node: node.name),
    Column("STATE", lambda node: out.state_text(node.state)),
    Column("TYPE", lambda node: node.gpu_type or DASH),
    Column("GPUS", lambda node: str(len(node.gpus)), right=True),
    Column("USED", lambda node: str(sum(1 for gpu in node.gpus if gpu.jobs)), right=True),
    Column("UNHEALTHY", lambda node: str(sum(1 for gpu in node.gpus if not gpu.healthy)), right=True, drop=2),
    Column("CPUS", _cpus, right=True, drop=4),
    Column("RACK", lambda node: node.rack or DASH, drop=1),
    Column("ADDRESS", lambda node: node.address or DASH, drop=3),
    Column("JOBS", _jobs_on, least=10),
)


def _print_nodes(found: tuple[Node, ...]) -> None:
    out.print_table(_NODES, found, "there are no nodes")
    print_health(found)


def print_health(found: tuple[Node, ...]) -> None:
    """Print a row for each unhealthy GPU and node and each cordoned node; nothing when there are none."""
    rows = [row for node in found for row in _health_rows(node)]
    if not rows:
        return
    columns: tuple[Column[Cells], ...] = (
        *(Column("WHAT"), Column("HEALTH"), Column("SINCE", right=True), Column("BY")),
        *(Column("WHY", least=16), Column("TO DO", least=8)),
    )
    typer.echo("")
    out.print_table(columns, rows)


def _health_rows(node: Node) -> Iterator[Cells]:
    if node.state in ("cordoned", "draining") and node.cordoned_by:
        since = DASH if node.cordoned_s is None else out.format_age(node.cordoned_s)
        undo = f"batuta nodes uncordon {node.name}"
        yield node.name, out.state_text(node.state), since, node.cordoned_by, "cordoned by hand", undo
    if node.health is not None and node.health.state != "healthy":
        yield _health_row(node.name, node.health, node.name)
    for gpu in node.gpus:
        if gpu.health is not None and gpu.health.state != "healthy":
            yield _health_row(f"{node.name} GPU {gpu.index}", gpu.health, f"{node.name} --gpu {gpu.index}")


def _health_row(what: str, health: HealthShown, named: str) -> Cells:
    state = f"{health.state}, in service" if health.held else health.state
    return (
        what,
        out.state_text(state),
        out.format_age(health.since_s),
        health.who or DASH,
        health.reason or DASH,
        _next_step(health, named) or DASH,
    )


def _next_step(health: HealthShown, named: str) -> str:
    if health.until_s is not None:
        return f"back in {out.format_seconds(max(0.0, health.until_s - time.time()))}"
    if health.state == "ill" and health.remedy:
        return f"{health.remedy}, then: batuta nodes mended {named}"
    return ""
