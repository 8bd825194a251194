"""`batuta events`: what happens, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, complete_jobs, connect

if TYPE_CHECKING:
    from batuta.client.answers import Event

NOISY = ("JobProgressed", "TransitionTimed", "TimePassed")
"""Types that people see only when they ask for them."""


def events(
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Go on as they happen.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="The last N first.", metavar="N")] = 20,
    job: Annotated[
        str | None,
        typer.Option("--job", "-j", help="Only those of one job.", autocompletion=complete_jobs),
    ] = None,
    type: Annotated[
        list[str] | None, typer.Option("--type", "-t", help="Only this type, such as JobEnded; repeatable.")
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Print what happened, and with --follow what happens.

    Reports of progress are left out unless --type asks for them. JSON has all, as one object per line.

    Examples:

      batuta events --tail 50

      batuta events --follow --type JobEnded -o json
    """
    with connect(home) as client:
        only = None if job is None else client.job(job).id
        types = tuple(type or ())
        skip = () if types or output is Output.JSON else NOISY
        last = client.last_event()
        try:
            for event in client.recent_events(tail, types, only, skip):
                last = max(last, event.seq)
                _print(event, output)
            for event in client.events(last, types, only) if follow else ():
                if event.type not in skip:
                    _print(event, output)
        except KeyboardInterrupt:
            return


def _print(event: Event, output: Output) -> None:
    import json

    from batuta.cli.event_view import tell
    from batuta.cli.terminal import show_moment

    if output is Output.JSON:
        line = {"seq": event.seq, "type": event.type, **event.data}
        typer.echo(json.dumps(line, ensure_ascii=False))
        return
    for sentence in tell(event):
        typer.echo(f"{show_moment(event.time_s)}  {sentence}")
