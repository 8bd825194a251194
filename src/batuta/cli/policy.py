"""`batuta policy`: who decides how many GPUs each job gets, and how to change that while jobs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.sections import Group
from batuta.cli.server_options import HomeOption, connect

if TYPE_CHECKING:
    from batuta.client.answers import Policy

app = typer.Typer(
    cls=Group,
    name="policy",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def policy(ctx: typer.Context, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show or change the policy that decides.

    Examples:

      batuta policy

      batuta policy set afs-l
    """
    if ctx.invoked_subcommand is None:
        show(output, home)


@app.command()
def show(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show which policy decides now.

    Example: batuta policy show
    """
    with connect(home) as client:
        _tell(client.policy(), output)


@app.command(name="set")
def set_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See batuta policy list.")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Let another policy decide from the next cycle on. Jobs that run are resized, not restarted from zero.

    Example: batuta policy set elastic-tiresias
    """
    with connect(home) as client:
        _tell(client.set_policy(name), output)


@app.command()
def shadow(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See batuta policy list; off ends it.")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Let a second policy watch, and note what it would have done. It touches nothing.

    Example: batuta policy shadow afs-l
    """
    from batuta.cli.server_options import connect_to_server
    from batuta.cli.terminal import print_json

    with connect_to_server(home) as client:
        report = client.set_shadow("" if name == "off" else name)
    if output is Output.JSON:
        print_json(report)
    elif report.policy:
        typer.echo(f"{report.policy} watches: batuta shadow tells what it would have done")
    else:
        typer.echo("no policy watches any more")


@app.command(name="list")
def list_policies(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List the policies that the server knows; a star marks the one that decides.

    Example: batuta policy list
    """
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import print_json

    with connect(home) as client:
        known = client.policy()
    if output is Output.JSON:
        print_json(known)
        return
    columns = (Column(""), Column("POLICY"), Column("WHAT IT DOES", least=20))
    rows = [("*" if one.name == known.name else "", one.name, one.summary) for one in known.policies]
    print_table(columns, rows)


def _tell(known: Policy, output: Output) -> None:
    from batuta.cli.terminal import print_json

    if output is Output.JSON:
        print_json(known)
        return
    summary = next((one.summary for one in known.policies if one.name == known.name), "")
    typer.echo(f"{known.name}: {summary}" if summary else known.name)
