"""`batuta queues`: where jobs wait, and how much each queue may use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, connect

if TYPE_CHECKING:
    from batuta.client.answers import Queue

app = typer.Typer(
    name="queues",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def queues(ctx: typer.Context, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List queues, describe one, apply a file of them.

    Examples:

      batuta queues

      batuta queues apply queues.yaml
    """
    if ctx.invoked_subcommand is None:
        list_queues(output, home)


@app.command(name="list")
def list_queues(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List the queues: quota, what is used, borrowed and lent, how many jobs run and wait.

    Example: batuta queues list -o json
    """
    with connect(home) as client:
        _show(client.queues(), output)


@app.command()
def apply(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A YAML file of queues.")] = None,
    file_option: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="The same, as kubectl has it.")
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Make or change the queues of a file. The whole file is checked before anything is changed.

    Example: batuta queues apply queues.yaml

    where queues.yaml is

      queues:

        - {name: team-a, quota: {H100: 8}, cohort: research, weight: 2}

        - {name: night, held: true}
    """
    from batuta.spec.problem import InputError
    from batuta.spec.queue_file import read_queue_file

    path = file or file_option
    if path is None or (file is not None and file_option is not None):
        raise InputError.of("which file?", fix="batuta queues apply FILE")
    wanted = read_queue_file(path)
    with connect(home) as client:
        applied = [
            client.set_queue(
                queue.name,
                {
                    "quota": dict(queue.quota),
                    "cohort": queue.cohort,
                    "weight": queue.weight,
                    "held": queue.held,
                },
            )
            for queue in wanted
        ]
    _show(tuple(applied), output)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of a queue.")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Show one queue and its jobs, in the order of submission.

    Example: batuta queues describe team-a
    """
    from batuta.cli.job_view import print_queue
    from batuta.cli.terminal import print_json
    from batuta.client.decoding import encode
    from batuta.client.errors import ClientError
    from batuta.spec.problem import did_you_mean

    with connect(home) as client:
        known = {queue.name: queue for queue in client.queues()}
        if name not in known:
            raise ClientError(f"there is no queue {name} ({did_you_mean(name, list(known))})")
        jobs = client.jobs(queue=name, active=True)
    if output is Output.JSON:
        print_json(encode(known[name]) | {"jobs": encode(jobs)})
        return
    _show((known[name],), output)
    typer.echo()
    print_queue(jobs, "no job runs or waits in it")


def _show(found: tuple[Queue, ...], output: Output) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import NOTHING, print_json

    if output is Output.JSON:
        print_json(found)
        return
    columns = (
        Column("QUEUE"),
        Column("QUOTA", least=8),
        Column("USED", least=6),
        Column("BORROWED", drop=2),
        Column("LENT", drop=2),
        Column("RUNNING", right=True),
        Column("PENDING", right=True),
        Column("COHORT", drop=1),
        Column("WEIGHT", right=True, drop=3),
        Column("HELD"),
    )
    rows = [
        (
            queue.name,
            _counts(queue.quota) or "no limit",
            _counts(queue.used) or "0",
            _counts(queue.borrowed) or NOTHING,
            _counts(queue.lent) or NOTHING,
            str(queue.running),
            str(queue.pending),
            queue.cohort or NOTHING,
            f"{queue.weight:g}",
            "held" if queue.held else NOTHING,
        )
        for queue in found
    ]
    print_table(columns, rows, "there are no queues")


def _counts(gpus: Mapping[str, int]) -> str:
    """`8 H100, 4 T4`; `16` for all types together, unless there is just one."""
    by_type = ", ".join(f"{count} {kind}" for kind, count in gpus.items() if kind != "*" and count)
    total = gpus.get("*")
    if total is None or (by_type and len(gpus) == 2):
        return by_type or ("0" if gpus and total is None else "")
    return f"{total} ({by_type})" if by_type else (str(total) if total else "")
