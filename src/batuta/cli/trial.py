"""`batuta trial`: run a task for a short while at several sizes, and tell how it scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from batuta.cli.cluster_options import chosen_cluster, command
from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, connect

if TYPE_CHECKING:
    from batuta.client.answers import Job, Trial, TrialRun
    from batuta.client.connection import Connection
    from batuta.client.kube.client import KubeClient


def trial(
    task: Annotated[Path, typer.Argument(metavar="TASK.yaml", help="A task file.")],
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="N,…", help="Numbers of GPUs; default: 1, 2, 4 … as far as it may."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="For all of it; default: 5m.")
    ] = None,
    each: Annotated[
        str | None,
        typer.Option("--each", metavar="TIME", help="At each size; default: its part of it, 1m at most."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", metavar="P", help="Of the trial runs, -1000 to 1000; default: the task's."
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="The queue they wait in.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return at once.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Run a task for a short while at several sizes, and tell how it scales.

    Each size is an ordinary job that is ended when it is measured. Later jobs of the same name start from
    what it showed; the task itself is not launched. At a cluster it is a TrialRun. Ctrl-C detaches.

    Examples:

      batuta trial train.yaml

      batuta trial train.yaml --sizes 1,2,4 --budget 3m

      batuta --context prod trial train.yaml
    """
    from batuta.client.submission import Submission

    wishes: dict[str, Any] = {"only": True, "priority": priority} | _read(sizes, budget, each, priority)
    said = {key: value for key, value in wishes.items() if value is not None}
    submission = Submission.of(task, None, {"queue": queue, "trial": said})
    with connect(home) as client:
        if _is_cluster(client):
            from batuta.cli.cluster_trial import follow_on_cluster

            raise typer.Exit(follow_on_cluster(client, submission, output, detach=detach))
        raise typer.Exit(_follow(client, submission, output, detach=detach))


def _is_cluster(client: Connection) -> TypeGuard[KubeClient]:
    """Whether there is no server of ours in between."""
    if chosen_cluster() is None:
        return False
    from batuta.client.kube.client import KubeClient

    return isinstance(client, KubeClient)


def _read(sizes: str | None, budget: str | None, each: str | None, priority: int | None) -> dict[str, Any]:
    """What the options say, or all that is wrong with them."""
    from batuta.spec.duration import parse_duration_s
    from batuta.spec.problem import InputError, Problem

    problems: list[Problem] = []
    if priority is not None and (cluster := chosen_cluster()) is not None and cluster.is_said:
        problems.append(
            Problem("--priority is a number, and a cluster has classes", fix="spec.priorityClassName does it")
        )
    found: dict[str, Any] = {}
    if sizes is not None:
        words = [word.strip() for word in sizes.split(",")]
        if all(word.isascii() and word.isdigit() and 0 < len(word) < 7 for word in words):
            found["sizes"] = [int(word) for word in words]
        else:
            problems.append(Problem(f"--sizes: {sizes[:60]!r} is no list of numbers", fix="as in 1,2,4"))
    for key, name, text in (("budget_s", "--budget", budget), ("each_s", "--each", each)):
        if text is not None:
            try:
                found[key] = parse_duration_s(text, name)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def _follow(client: Connection, submission: Any, output: Output, *, detach: bool) -> int:
    from batuta.cli.terminal import print_json, say, spinner

    submitted = client.send_submission(submission)
    job = submitted.job
    for note in submitted.notes:
        say(f"note: {note}")
    if detach:
        if output is Output.JSON:
            print_json(job)
        else:
            typer.echo(f"job {job.label} is tried out")
            say(f"{command('explain', job.id)} shows what is measured so far")
        return 0
    try:
        with spinner(f"job {job.label} is tried out") as status:
            teller = _Teller(client, status.update)
            job = client.wait(job, tell=teller.look)
    except KeyboardInterrupt:
        say(f"\ndetached; {command('explain', job.id)} shows what is measured so far")
        return 0
    found = client.explain(job).trial
    if output is Output.JSON:
        print_json(found)
    elif found is not None:
        print_trial(found)
    return 0 if job.state == "SUCCEEDED" else 103 if job.state == "CANCELLED" else 100


class _Teller:
    """Says once what each run showed, and shows what goes on."""

    def __init__(self, client: Connection, show: Any) -> None:
        self._client = client
        self._show = show
        self._told: set[int] = set()

    def look(self, job: Job) -> None:
        found = self._client.explain(job).trial
        if found is not None:
            tell_runs(found, self._told, self._show)


def tell_runs(found: Trial, told: set[int], show: Callable[[str], None]) -> None:
    """Says once what each run showed, and shows what goes on. `told`: sizes that have been told."""
    from rich.markup import escape

    from batuta.cli.terminal import say

    for run in found.runs:
        if run.state in ("waits", "runs"):
            show(escape(f"{_gpus(run.gpus)}: {run.state} (job {run.run})"))
        elif run.state not in ("planned", "not tried") and run.gpus not in told:
            told.add(run.gpus)
            say(f"{_gpus(run.gpus)}: {_speed(run) or run.state}")


def print_trial(found: Trial) -> None:
    """The table, and what it comes to."""
    from batuta.cli.table import Column, print_table

    columns = (
        *(Column("GPUS", right=True), Column("TYPE", drop=3), Column("STEPS/S", right=True)),
        *(Column("SPEED", right=True, drop=1), Column("MEMORY", right=True), Column("BUSY", right=True)),
        *(Column("EFFICIENCY", right=True), Column("RESULT", least=12, fold=True)),
    )
    print_table(columns, [_row(run) for run in found.runs])
    if found.sentence:
        typer.echo(f"\n{found.sentence}")


def _row(run: TrialRun) -> Sequence[str]:
    return (
        str(run.gpus),
        run.gpu_type or "–",
        "–" if run.steps_per_s is None else f"{run.steps_per_s:.3g}",
        _speed(run) or "–",
        "–" if run.memory_mib is None else _memory(run.memory_mib),
        "–" if run.utilisation is None else f"{run.utilisation:.0%}",
        "–" if run.efficiency is None else f"{run.efficiency:.0%}",
        f"{run.state}: {run.detail}" if run.detail and run.units_per_s is None else run.state,
    )


def _speed(run: TrialRun) -> str:
    return "" if run.units_per_s is None else f"{run.units_per_s:.3g} {run.unit}/s"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _memory(mib: int) -> str:
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
