"""`batuta status`: the cluster at a glance, or one job in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, complete_jobs, connect

if TYPE_CHECKING:
    from batuta.client.answers import Cluster
    from batuta.client.connection import Connection


def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Id or name of a job.", autocompletion=complete_jobs),
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Show the cluster at a glance, or everything about one job.

    Examples:

      batuta status

      batuta status resnet -o json
    """
    from batuta.cli.job_view import print_job
    from batuta.cli.terminal import print_json

    with connect(home) as client:
        if job is None:
            _show_cluster(client, output)
            return
        found = client.job(client.job(job))  # by id, once more: a list does not have the task
        if output is Output.JSON:
            print_json(found)
        else:
            print_job(found)


def _show_cluster(client: Connection, output: Output) -> None:
    from batuta.cli.job_view import print_queue
    from batuta.cli.terminal import print_json
    from batuta.client.decoding import encode

    cluster = client.cluster()
    jobs = client.jobs(active=True, newest_first=True)
    if output is Output.JSON:
        print_json({"cluster": encode(cluster), "jobs": encode(jobs)})
        return
    _print_cluster(cluster, client.where)
    print_queue(jobs, "no job is running or waiting")


def _print_cluster(cluster: Cluster, where: str) -> None:
    from rich.text import Text

    from batuta.cli.terminal import NOTHING, console, show_seconds

    out = console()
    gpus = cluster.gpus
    kind = "virtual GPUs" if cluster.virtual else "GPUs"
    closed = f", {gpus.cordoned} cordoned" if gpus.cordoned else ""
    ill = f", {gpus.unhealthy} unhealthy" if gpus.unhealthy else ""
    counts = ", ".join(f"{count} {state}" for state, count in cluster.jobs.items() if count)
    age = show_seconds(_age(cluster))
    policy = f"; policy {cluster.policy}" if cluster.policy else ""
    out.print(Text(f"Batuta {cluster.version} at {where}" + (f", up for {age}" if age != NOTHING else "")))
    if (
        gpus.total or cluster.policy
    ):  # who may not see the nodes of a cluster does not see that there are none
        out.print(Text(f"{gpus.used} of {gpus.total} {kind} used, {gpus.free} free{closed}{ill}{policy}"))
    if counts:
        out.print(Text(f"jobs: {counts}"))
    if cluster.trouble:
        out.print(Text(f"trouble: {cluster.trouble}", style="bold red"))
    out.print()


def _age(cluster: Cluster) -> float | None:
    if cluster.now_s is None or cluster.started_s is None:
        return None
    return max(0.0, cluster.now_s - cluster.started_s)
