"""`batuta queues`: where jobs wait, and how much each queue may use."""

from __future__ import annotations

from typing import Annotated

import typer

from batuta.cli import queues_change, queues_try
from batuta.cli.options import Output, OutputOption
from batuta.cli.sections import Group
from batuta.cli.server_options import HomeOption, connect

app = typer.Typer(
    cls=Group,
    name="queues",
    invoke_without_command=True,
    rich_markup_mode=None,
)


TreeOption = Annotated[
    bool, typer.Option("--tree", "-t", help="Cohorts and the queues in them, with a bar for each quota.")
]


@app.callback()
def queues(
    ctx: typer.Context, tree: TreeOption = False, output: OutputOption = Output.TABLE, home: HomeOption = None
) -> None:
    """List queues, describe one; try out quota, and apply it.

    Examples:

      batuta queues

      batuta queues --tree

      batuta queues try case.yaml

      batuta queues apply -f quota.yaml
    """
    if ctx.invoked_subcommand is None:
        list_queues(tree, output, home)


@app.command(name="list")
def list_queues(
    tree: TreeOption = False, output: OutputOption = Output.TABLE, home: HomeOption = None
) -> None:
    """List the queues: quota, what is used, borrowed and lent, how many jobs run and wait.

    Example: batuta queues list -o json
    """
    from batuta.cli.queues_tree import print_queue_tree
    from batuta.cli.queues_view import print_queues
    from batuta.cli.terminal import print_json

    with connect(home) as client:
        found = client.queue_tree()
    if output is Output.JSON:
        print_json(found if tree else found.queues)
    elif tree:
        print_queue_tree(found)
    else:
        print_queues(found.queues)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of a queue.")],
    limit: Annotated[
        int, typer.Option("--limit", "-l", min=1, max=1000, help="How many jobs of each list.")
    ] = 100,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Show one queue: what it may use and uses, who has its quota, who waits in which order and why.

    Example: batuta queues describe team-a
    """
    from batuta.cli.queues_view import print_queue_detail
    from batuta.cli.terminal import print_json
    from batuta.client.errors import ApiError, ClientError
    from batuta.spec.problem import did_you_mean

    with connect(home) as client:
        try:
            found = client.queue(name, limit)
        except ApiError as error:
            if error.status != 404:
                raise
            known = [queue.name for queue in client.queues()]
            raise ClientError(f"there is no queue {name} ({did_you_mean(name, known)})") from None
    if output is Output.JSON:
        print_json(found)
    else:
        print_queue_detail(found)


app.command(name="try")(queues_try.try_out)
app.command()(queues_change.apply)
app.command()(queues_change.delete)
app.command()(queues_change.export)
