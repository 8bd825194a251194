"""Verbs about jobs: `queue`, `history`, `get`, `status`, `cancel`, `stop`, `start`, `resize`, `delete`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from batuta.apitypes.resources import Cluster, Job
from batuta.cli import output as out
from batuta.cli.job_view import HISTORY_COLUMNS, columns_for, print_job, print_queue
from batuta.cli.options import (
    HomeOption,
    JobArgument,
    JobsArgument,
    Output,
    OutputOption,
    YesOption,
    argument,
    connect,
    flag,
    option,
    target_cluster,
)
from batuta.cli.verbs import CommandGroup
from batuta.client.connection import Connection
from batuta.client.errors import AmbiguousJobError, UnknownJobError
from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.quantity import parse_duration_s

RECENT = 10

AllOption = Annotated[bool, flag("--all -a", "All jobs, however long ago they ended.")]
SkipOption = Annotated[bool, flag("--skip-finished -s", "Only jobs that are not over.")]
UserOption = Annotated[str | None, option("Only this user's jobs.", names="--user -u")]
QueueOption = Annotated[str | None, option("Only jobs of this queue.", names="--queue -q", complete="queues")]


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
    with connect(home) as client:
        found = list(client.jobs(active=True, user=user, queue=queue, newest_first=True))
        if not skip_finished:
            limit = None if all else RECENT
            found += client.jobs(active=False, user=user, queue=queue, newest_first=True, limit=limit)
        _check_queue(client, home, queue, found)
    empty = "no jobs yet: `batuta launch -- COMMAND` starts one"
    out.print_result(found, output, lambda jobs: print_queue(jobs, empty))


def history(
    since: Annotated[str, option("How far back, as in 12h or 7d.")] = "7d",
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
    since_s = time.time() - parse_duration_s(since, "--since")
    with connect(home) as client:
        found = client.jobs(active=False, user=user, queue=queue, since_s=since_s, newest_first=True)
        _check_queue(client, home, queue, found)
    found, empty = tuple(sorted(found, key=lambda job: -(job.ended_s or 0.0))), f"no job has ended within {since}"
    out.print_result(found, output, lambda jobs: out.print_table(columns_for(jobs, HISTORY_COLUMNS), jobs, empty))


def _check_queue(client: Connection, home: Path | None, queue: str | None, found: Sequence[Job]) -> None:
    """Refuse a queue that the server does not have: an empty list would hide a typing error."""
    if queue is None or found or target_cluster(home) is not None:
        return
    known = [one.name for one in client.queues()]
    if queue not in known:
        raise InputError.of(f"--queue: there is no queue {queue}", fix=did_you_mean(queue, known))


get = typer.Typer(cls=CommandGroup, name="get", no_args_is_help=True, rich_markup_mode=None)


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


def status(
    job: Annotated[str | None, argument("[JOB]", "Id or name of a job.", complete="active jobs")] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Show the cluster at a glance, or everything about one job.

    Examples:
      batuta status
      batuta status resnet -o json
    """
    with connect(home) as client:
        if job is not None:
            # By id, once more: a list does not have the task.
            out.print_result(client.job(client.job(job)), output, print_job)
            return
        cluster, jobs = client.cluster(), client.jobs(active=True, newest_first=True)
        if output is Output.JSON:
            out.print_json({"cluster": cluster, "jobs": jobs})
            return
        _print_cluster(cluster, client.where)
        print_queue(jobs, "no job is running or waiting")


def _print_cluster(cluster: Cluster, where: str) -> None:
    gpus = cluster.gpus
    kind = "virtual GPUs" if cluster.virtual else "GPUs"
    cordoned = f", {gpus.cordoned} cordoned" if gpus.cordoned else ""
    unhealthy = f", {gpus.unhealthy} unhealthy" if gpus.unhealthy else ""
    counts = ", ".join(f"{count} {state}" for state, count in cluster.jobs.items() if count)
    age = ""
    if cluster.now_s is not None and cluster.started_s is not None:
        age = f", up for {out.format_seconds(max(0.0, cluster.now_s - cluster.started_s))}"
    policy = f"; policy {cluster.policy}" if cluster.policy else ""
    show = out.console().print
    show(out.styled(f"Batuta {cluster.version} at {where}{age}"))
    # A user without access to the nodes of a cluster sees none of them.
    if gpus.total or cluster.policy:
        show(out.styled(f"{gpus.used} of {gpus.total} {kind} used, {gpus.free} free{cordoned}{unhealthy}{policy}"))
    if counts:
        show(out.styled(f"jobs: {counts}"))
    if cluster.trouble:
        show(out.styled(f"trouble: {cluster.trouble}", style="bold red"))
    show()


def cancel(
    jobs: JobsArgument = None,
    all: Annotated[bool, flag("--all -a", "All jobs that are not over.")] = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """End jobs for good. Their processes are gone when they show as CANCELLED.

    Examples:
      batuta cancel resnet 17
      batuta cancel --all -y
    """
    if bool(jobs) == all:
        raise InputError.of("which jobs?", fix="name some, or use --all; not both")
    with connect(home) as client:
        found = list(client.jobs(active=True)) if all else find_jobs(client, jobs or ())
        if not found:
            if output is Output.TABLE:
                out.print_stderr("there is no job to cancel")
            _print_changed([], output, "")
            return
        if not yes and all:
            shown = ", ".join(job.label for job in found[:8]) + (", …" if len(found) > 8 else "")
            out.confirm(f"Cancel {len(found)} {'job' if len(found) == 1 else 'jobs'} ({shown})?")
        _print_changed([client.cancel(job) for job in found], output, "is being cancelled")


def delete(name: JobArgument, home: HomeOption = None) -> None:
    """The same as batuta cancel NAME -y.

    Example: batuta delete resnet
    """
    cancel([name], yes=True, home=home)


def stop(jobs: JobsArgument = None, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Park jobs until `batuta start`.

    They make a checkpoint and give their GPUs back.

    Example: batuta stop resnet
    """
    _change_each(jobs, home, output, lambda client, job: client.park(job), "is being parked")


def start(jobs: JobsArgument = None, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Let parked jobs run again, from their last checkpoint.

    Example: batuta start resnet
    """
    _change_each(jobs, home, output, lambda client, job: client.resume(job), "may run again")


def resize(
    job: JobArgument,
    size: Annotated[
        str | None, argument("[N|auto]", "The same as --nodes; auto: the range of the task, as the scheduler likes.")
    ] = None,
    nodes: Annotated[int | None, option("Run at exactly this size, or within the range.", min=1)] = None,
    min_nodes: Annotated[int | None, option("Smallest size.", min=1)] = None,
    max_nodes: Annotated[int | None, option("Largest size.", min=1)] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Change how many nodes an elastic job asks for. It keeps its progress by a checkpoint.

    A job of one size can be given another one until it has started.

    Examples:
      batuta resize resnet --nodes 4
      batuta resize resnet --min-nodes 1 --max-nodes 8
      batuta resize resnet auto
      batuta --context prod resize resnet 4
    """
    is_auto = size == "auto"
    if size is not None and not is_auto:
        nodes = _parse_nodes(size, nodes)
    if nodes is None and min_nodes is None and max_nodes is None and not is_auto:
        raise InputError.of("to what size?", fix="a number of nodes, or --min-nodes and --max-nodes")
    if is_auto and (nodes, min_nodes, max_nodes) != (None, None, None):
        raise InputError.of("auto and a size", fix="one of both")
    with connect(home) as client:
        if is_auto:
            changed = client.unpin(job)
        else:
            changed = client.resize(job, nodes, min_nodes=min_nodes, max_nodes=max_nodes)
        gpus = changed.gpus
        span = "" if gpus.min == gpus.max else f" ({gpus.min}–{gpus.max})"
        _print_changed([changed], output, f"asks for {out.format_gpus(gpus.wanted)} now{span}")


def _parse_nodes(size: str, nodes: int | None) -> int:
    if nodes is not None:
        raise InputError.of(f"{size} and --nodes {nodes}", fix="one of both")
    if not (size.isascii() and size.isdigit() and 1 <= int(size) < 10**9):
        raise InputError.of(f"{size[:40]!r} is not a number of nodes", fix="1 or more, or auto")
    return int(size)


def find_jobs(client: Connection, names: Sequence[str]) -> list[Job]:
    """Return all named jobs; raise all unknown names together, before anything changes."""
    found: dict[str, Job] = {}
    problems: list[Problem] = []
    unknown: list[str] = []
    for name in names:
        try:
            job = client.job(name)
            found[job.id] = job
        except AmbiguousJobError as error:
            problems.append(Problem(str(error)))
        except UnknownJobError as error:
            unknown.append(str(error))
    if problems:
        raise InputError([*problems, *map(Problem, unknown)])
    if unknown:
        raise UnknownJobError("\n".join(unknown))
    return list(found.values())


def _change_each(
    names: Sequence[str] | None, home: HomeOption, output: Output, change: Callable[[Connection, Job], Job], what: str
) -> None:
    if not names:
        raise InputError.of("which jobs?", fix="give their ids or names")
    with connect(home) as client:
        _print_changed([change(client, job) for job in find_jobs(client, names)], output, what)


def _print_changed(jobs: Sequence[Job], output: Output, what: str) -> None:
    if output is Output.JSON:
        out.print_json(jobs)
        return
    for job in jobs:
        change = f"is {job.state} already" if job.is_over and job.state != "CANCELLED" else what
        typer.echo(f"job {job.label} {change}")
