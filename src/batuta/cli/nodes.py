"""`batuta nodes` and `batuta gpus`: what the cluster is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.sections import Group
from batuta.cli.server_options import HomeOption, NodeArgument, connect

if TYPE_CHECKING:
    from rich.text import Text

    from batuta.client.answers import Node

app = typer.Typer(
    cls=Group,
    name="nodes",
    invoke_without_command=True,
    rich_markup_mode=None,
)


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
        _show(client.nodes(), output)


@app.command()
def cordon(node: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Start nothing new on a node; what runs there stays.

    Example: batuta nodes cordon node-1
    """
    with connect(home) as client:
        _show((client.cordon(node),), output)


@app.command()
def uncordon(node: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Put a node back into service; one that nobody had cordoned is well by your word.

    Example: batuta nodes uncordon node-1
    """
    with connect(home) as client:
        _show((client.uncordon(node),), output)


@app.command()
def drain(node: NodeArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Cordon a node and move away what runs there, with a checkpoint.

    Example: batuta nodes drain node-1
    """
    with connect(home) as client:
        _show((client.drain(node),), output)


@app.command()
def mended(
    node: NodeArgument,
    gpu: Annotated[
        int | None,
        typer.Option("--gpu", min=0, metavar="N", help="Only this GPU was ill; default: the node."),
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Say that what a node or GPU needed is done: it is tested, and comes back after its probation.

    Examples:

      batuta nodes mended node-1

      batuta nodes mended node-1 --gpu 3
    """
    with connect(home) as client:
        _show((client.mended(node, gpu),), output)


def gpus(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show every GPU, and which job has it.

    Example: batuta gpus
    """
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import print_json

    with connect(home) as client:
        found = client.nodes()
        names = {job.id: job.label for job in client.jobs(active=True)}
    if output is Output.JSON:
        rows = [
            {"node": node.name, "state": node.state, "type": node.gpu_type} | _plain(gpu)
            for node in found
            for gpu in node.gpus
        ]
        print_json(rows)
        return
    columns = (
        Column("NODE"),
        Column("GPU", right=True),
        Column("TYPE"),
        Column("STATE"),
        Column("BUSY", right=True, drop=1),
        Column("JOBS", least=12),
    )
    print_table(columns, [row for node in found for row in _gpu_rows(node, names)], "there are no GPUs")


def _plain(gpu: object) -> dict[str, object]:
    from batuta.client.decoding import encode

    told: dict[str, object] = encode(gpu)
    return told


def _gpu_rows(node: Node, names: dict[str, str]) -> list[tuple[str | Text, ...]]:
    from batuta.cli.terminal import NOTHING, state_text

    rows: list[tuple[str | Text, ...]] = []
    for gpu in node.gpus:
        state = node.state if node.state != "ready" else "used" if gpu.jobs else "free"
        state = state if gpu.healthy else "unhealthy"
        busy = NOTHING if gpu.utilisation is None else f"{100 * gpu.utilisation:.0f}%"
        jobs = ", ".join(names.get(one.id, one.id) + _share(one.share) for one in gpu.jobs)
        rows.append((node.name, str(gpu.index), node.gpu_type, state_text(state), busy, jobs or NOTHING))
    return rows


def _share(share: object) -> str:
    from batuta.client.answers import Share

    if not isinstance(share, Share):
        return ""
    parts = [f"{share.compute_percent}%"] if share.compute_percent else []
    parts += [f"{share.memory_mib} MiB"] if share.memory_mib else []
    return f" [{', '.join(parts)}]"


def _show(found: tuple[Node, ...], output: Output) -> None:
    from batuta.cli.nodes_health import print_health
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import NOTHING, print_json, state_text

    if output is Output.JSON:
        print_json(found)
        return
    columns = (
        Column("NODE"),
        Column("STATE"),
        Column("TYPE"),
        Column("GPUS", right=True),
        Column("USED", right=True),
        Column("UNHEALTHY", right=True, drop=2),
        Column("RACK", drop=1),
        Column("ADDRESS", drop=3),
        Column("JOBS", least=10),
    )
    rows = [
        (
            node.name,
            state_text(node.state),
            node.gpu_type,
            str(len(node.gpus)),
            str(sum(1 for gpu in node.gpus if gpu.jobs)),
            str(sum(1 for gpu in node.gpus if not gpu.healthy)),
            node.rack or NOTHING,
            node.address or NOTHING,
            ", ".join(dict.fromkeys(job.id for gpu in node.gpus for job in gpu.jobs)) or NOTHING,
        )
        for node in found
    ]
    print_table(columns, rows, "there are no nodes")
    print_health(found)
