"""`batuta queue`, `batuta history`, `batuta get jobs`: jobs in a table."""

from __future__ import annotations

from typing import Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.sections import Group
from batuta.cli.server_options import HomeOption, connect

RECENT = 10
"""Jobs that are over are shown up to this many unless all are asked for."""

AllOption = Annotated[bool, typer.Option("--all", "-a", help="All jobs, however long ago they ended.")]
SkipOption = Annotated[bool, typer.Option("--skip-finished", "-s", help="Only jobs that are not over.")]
UserOption = Annotated[str | None, typer.Option("--user", "-u", help="Only this user's jobs.")]
QueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="Only jobs of this queue.")]


def queue(
    all: AllOption = False,
    skip_finished: SkipOption = False,
    user: UserOption = None,
    queue: QueueOption = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """List jobs, the newest first.

    All that are not over, and the ten newest of the others; -a has them all. Under GPUS stands how many
    it has / asked for, and the range of an elastic one.

    Examples:

      batuta queue

      batuta queue -a --user ana -o json
    """
    from batuta.cli.job_view import print_queue
    from batuta.cli.terminal import print_json

    with connect(home) as client:
        found = list(client.jobs(active=True, user=user, queue=queue, newest_first=True))
        if not skip_finished:
            limit = None if all else RECENT
            found += client.jobs(active=False, user=user, queue=queue, newest_first=True, limit=limit)
    if output is Output.JSON:
        print_json(found)
    else:
        print_queue(found, "no jobs yet: `batuta launch -- COMMAND` starts one")


def history(
    since: Annotated[str, typer.Option("--since", help="How far back, as in 12h or 7d.")] = "7d",
    user: UserOption = None,
    queue: QueueOption = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """List the jobs that have ended, and how they did.

    Examples:

      batuta history --since 24h

      batuta history --since 30d --user ana -o json
    """
    import time

    from batuta.cli.job_view import print_history
    from batuta.cli.terminal import print_json
    from batuta.spec.duration import parse_duration_s

    since_s = time.time() - parse_duration_s(since, "--since")
    with connect(home) as client:
        found = client.jobs(active=False, user=user, queue=queue, since_s=since_s, newest_first=True)
    found = tuple(sorted(found, key=lambda job: -(job.ended_s or 0.0)))
    if output is Output.JSON:
        print_json(found)
    else:
        print_history(found, f"no job has ended within {since}")


get = typer.Typer(
    cls=Group,
    name="get",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@get.callback()
def _get() -> None:
    """batuta get jobs: the same as batuta queue -a.

    Example: batuta get jobs
    """


@get.command(name="jobs")
def get_jobs(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List all jobs: the same as batuta queue -a.

    Example: batuta get jobs
    """
    queue(all=True, output=output, home=home)
