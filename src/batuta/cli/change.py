"""`batuta cancel`, `stop`, `start`, `resize`, `delete`: change what becomes of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, JobArgument, JobsArgument, YesOption, connect

if TYPE_CHECKING:
    from batuta.client.answers import Job
    from batuta.client.connection import Connection


def cancel(
    jobs: JobsArgument = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="All jobs that are not over.")] = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """End jobs for good. Their processes are gone when they show as CANCELLED.

    Examples:

      batuta cancel resnet 17

      batuta cancel --all -y
    """
    from batuta.cli.terminal import confirm, say

    if bool(jobs) == all:
        from batuta.spec.problem import InputError

        raise InputError.of("which jobs?", fix="name some, or use --all; not both")
    with connect(home) as client:
        found = _living(client) if all else find_all(client, jobs or ())
        if not found:
            if output is Output.TABLE:
                say("there is no job to cancel")
            _show([], output, "")
            return
        if not yes and all:
            shown = ", ".join(job.label for job in found[:8]) + (", …" if len(found) > 8 else "")
            confirm(f"Cancel {len(found)} {'job' if len(found) == 1 else 'jobs'} ({shown})?")
        _show([client.cancel(job) for job in found], output, "is being cancelled")


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
        str | None,
        typer.Argument(
            metavar="[N|auto]", help="The same as --nodes; auto, on a cluster: as the scheduler likes."
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Run at exactly this size, or within the range.")
    ] = None,
    min_nodes: Annotated[int | None, typer.Option("--min-nodes", min=1, help="Smallest size.")] = None,
    max_nodes: Annotated[int | None, typer.Option("--max-nodes", min=1, help="Largest size.")] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Change how many nodes a job asks for. It keeps its progress by a checkpoint.

    Examples:

      batuta resize resnet --nodes 4

      batuta resize resnet --min-nodes 1 --max-nodes 8

      batuta --context prod resize resnet auto
    """
    from batuta.spec.problem import InputError

    is_auto = size == "auto"
    if size is not None and not is_auto:
        nodes = _whole(size, nodes)
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
        size = f"{gpus.wanted} GPUs" if gpus.wanted != 1 else "1 GPU"
        span = "" if gpus.min == gpus.max else f" ({gpus.min}–{gpus.max})"
        _show([changed], output, f"asks for {size} now{span}")


def _whole(size: str, nodes: int | None) -> int:
    from batuta.spec.problem import InputError

    if nodes is not None:
        raise InputError.of(f"{size} and --nodes {nodes}", fix="one of both")
    if not (size.isascii() and size.isdigit() and 1 <= int(size) < 10**9):
        raise InputError.of(f"{size[:40]!r} is not a number of nodes", fix="1 or more, or auto")
    return int(size)


def find_all(client: Connection, names: Sequence[str]) -> list[Job]:
    """All jobs that are named, or all names that are wrong: nothing is done by halves."""
    from batuta.client.errors import AmbiguousJobError, UnknownJobError
    from batuta.spec.problem import InputError, Problem

    found: dict[str, Job] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            job = client.job(name)
            found[job.id] = job
        except (AmbiguousJobError, UnknownJobError) as error:
            problems.append(Problem(str(error)))
    if problems:
        raise InputError(problems)
    return list(found.values())


def _living(client: Connection) -> list[Job]:
    return list(client.jobs(active=True))


def _change_each(
    names: Sequence[str] | None,
    home: HomeOption,
    output: Output,
    change: Callable[[Connection, Job], Job],
    what: str,
) -> None:
    from batuta.spec.problem import InputError

    if not names:
        raise InputError.of("which jobs?", fix="give their ids or names")
    with connect(home) as client:
        _show([change(client, job) for job in find_all(client, names)], output, what)


def _show(jobs: Sequence[Job], output: Output, what: str) -> None:
    from batuta.cli.terminal import print_json

    if output is Output.JSON:
        print_json(jobs)
        return
    for job in jobs:
        said = f"is {job.state} already" if job.is_over and job.state != "CANCELLED" else what
        typer.echo(f"job {job.label} {said}")
