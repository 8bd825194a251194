"""`batuta shadow`: what a second policy would have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, connect_to_server

if TYPE_CHECKING:
    from batuta.client.foresight_answers import Shadow

_SHOWN = 20
_KINDS = ("start", "resize", "migrate", "preempt", "stop")


def shadow(
    outcome: Annotated[
        bool,
        typer.Option("--outcome", help="Also replay the journal since then: what jobs would have taken."),
    ] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell what the policy that only watches would have done.

    It sees the same cluster at the same moments as the one that decides. `batuta up --shadow NAME`, or
    `batuta policy shadow NAME`, lets it watch.

    Example: batuta shadow --outcome
    """
    from batuta.cli.terminal import print_json, say

    with connect_to_server(home) as client:
        report = client.shadow()
        folder = client.address.home if client.address is not None else None
    if output is Output.JSON:
        print_json(report)
        return
    if not report.policy:
        say("no policy watches: batuta policy shadow NAME lets one")
        return
    _show(report)
    if outcome:
        from batuta.cli.replay import show_replayed
        from batuta.client.errors import ClientError

        if folder is None:
            raise ClientError("--outcome reads the journal, which is at the server's machine")
        typer.echo("")
        show_replayed(folder, report.since_s, [report.active_policy, report.policy])


def _show(report: Shadow) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import say, show_ago

    agreed = f"{report.agreed / report.cycles:.0%}" if report.cycles else "–"
    typer.echo(
        f"{report.policy} watches {report.active_policy} since {show_ago(report.since_s)}: "
        f"{report.cycles} cycles, {agreed} alike, {report.skipped} not looked at"
    )
    if report.trouble:
        say(f"it could not decide {report.failed} times: {report.trouble}")
    columns = (Column(""), *(Column(f"{kind.upper()}S", right=True) for kind in _KINDS))
    counted = ((report.active_policy, report.did), (f"{report.policy}, would", report.would))
    print_table(columns, [(name, *(str(own.get(kind, 0)) for kind in _KINDS)) for name, own in counted])
    if report.differences:
        typer.echo("")
        columns = (
            Column("JOB"),
            Column("GPUS", right=True),
            Column("WOULD HAVE", right=True),
            Column("SINCE"),
        )
        rows = [
            (one.id, str(one.has), str(one.would_have), show_ago(one.since_s))
            for one in report.differences[:_SHOWN]
        ]
        print_table(columns, rows)
        if len(report.differences) > _SHOWN:
            say(f"{len(report.differences) - _SHOWN} more jobs: -o json has all")
