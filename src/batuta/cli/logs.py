"""`batuta logs`: what a job prints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.logs_old import LokiOption, TenantOption
from batuta.cli.server_options import HomeOption, JobArgument, connect

if TYPE_CHECKING:
    from batuta.cli.logs_old import Asked
    from batuta.client.connection import Connection


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until the job ends.")] = True,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Begin with the last N lines.", metavar="N")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="On a cluster: nothing older, as in 2h (ago), 09:30 or '2026-11-16 08:30'.",
            metavar="TIME",
        ),
    ] = None,
    node_rank: Annotated[int, typer.Option("--node-rank", min=0, help="Which replica's.", metavar="R")] = 0,
    status: Annotated[
        bool, typer.Option("--status", help="Print nothing but the state; the exit code tells it too.")
    ] = False,
    loki: LokiOption = None,
    loki_tenant: TenantOption = None,
    home: HomeOption = None,
) -> None:
    """Print what a job prints, and follow it until it ends.

    Exit codes: 0 succeeded, 100 failed, 103 cancelled; with --status also 101 not finished, 102 not found.
    With --no-follow it is 0.

    On a cluster, the output of pods that are gone comes from a Loki, if one is named; a token for it is read
    from $BATUTA_LOKI_TOKEN.

    Examples:

      batuta logs resnet

      batuta logs 17 --no-follow --tail 100 --node-rank 1

      batuta logs 17 --status || echo "not yet, or not well"

      batuta -n team-a logs resnet --since 2d --loki http://loki.example:3100
    """
    from batuta.cli.follow import follow_output
    from batuta.cli.job_view import exit_code_of
    from batuta.cli.logs_old import print_forgotten, print_past
    from batuta.client.errors import UnknownJobError

    with connect(home) as client:
        if status:
            raise typer.Exit(_print_state(client, job))
        asked = _asked(client, node_rank, tail, since, loki, loki_tenant)
        try:
            found = client.job(job)
        except UnknownJobError as unknown:
            print_forgotten(client, job, asked, unknown)
            return
        if follow and not found.is_over:
            code = follow_output(client, found, rank=node_rank, tail=tail, since_s=asked.since_s)
            raise typer.Exit(code)
        print_past(client, found, asked)
        if follow:
            raise typer.Exit(exit_code_of(found))


def _asked(
    client: Connection,
    rank: int,
    tail: int | None,
    since: str | None,
    loki: str | None,
    tenant: str | None,
) -> Asked:
    """The options together. A server keeps the output of all its jobs, and not when each line came."""
    from batuta.cli.logs_old import Asked, loki_of
    from batuta.cli.moments import parse_moment_s
    from batuta.client.client import Client
    from batuta.spec.problem import InputError, Problem

    if isinstance(client, Client):
        named = {"--since": since, "--loki": loki, "--loki-tenant": tenant}
        given = [
            Problem(f"{option} is for a cluster", fix="batuta -n NAMESPACE logs …")
            for option, value in named.items()
            if value
        ]
        if given:
            raise InputError(given)
        return Asked(rank, tail)
    since_s = None if since is None else parse_moment_s(since, "--since", time.time())
    return Asked(rank, tail, since_s, loki_of(loki, tenant))


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
