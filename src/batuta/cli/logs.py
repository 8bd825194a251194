"""`batuta logs`: what a job prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.server_options import HomeOption, JobArgument, connect

if TYPE_CHECKING:
    from batuta.client.connection import Connection


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until the job ends.")] = True,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Begin with the last N lines.", metavar="N")
    ] = None,
    node_rank: Annotated[int, typer.Option("--node-rank", min=0, help="Which replica's.", metavar="R")] = 0,
    status: Annotated[
        bool, typer.Option("--status", help="Print nothing but the state; the exit code tells it too.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Print what a job prints, and follow it until it ends.

    Exit codes: 0 succeeded, 100 failed, 103 cancelled; with --status also 101 not finished, 102 not found.
    With --no-follow it is 0.

    Examples:

      batuta logs resnet

      batuta logs 17 --no-follow --tail 100 --node-rank 1

      batuta logs 17 --status || echo "not yet, or not well"
    """
    from batuta.cli.follow import follow_output, print_log
    from batuta.cli.job_view import exit_code_of

    with connect(home) as client:
        if status:
            raise typer.Exit(_print_state(client, job))
        found = client.job(job)
        if follow and not found.is_over:
            raise typer.Exit(follow_output(client, found, rank=node_rank, tail=tail))
        print_log(client, found, rank=node_rank, tail=tail, follow=False)
        if follow:
            raise typer.Exit(exit_code_of(found))


def _print_state(client: Connection, job: str) -> int:
    from batuta.cli.job_view import NOT_FOUND, exit_code_of
    from batuta.cli.terminal import say
    from batuta.client.errors import UnknownJobError

    try:
        found = client.job(job)
    except UnknownJobError as error:
        say(str(error))
        return NOT_FOUND
    typer.echo(found.state)
    return exit_code_of(found)
