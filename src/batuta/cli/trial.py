"""`batuta trial`: run a task for a short while at several sizes, and tell how it scales."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from batuta.apitypes.resources import Job, Trial, TrialRun
from batuta.cli import output as out
from batuta.cli.options import (
    HomeOption,
    Output,
    OutputOption,
    argument,
    command_line,
    connect,
    flag,
    option,
    selected_cluster,
)
from batuta.cli.output import DASH, Column
from batuta.client.connection import Connection
from batuta.spec.problem import Problem, collect_problems, refuse
from batuta.spec.quantity import parse_duration_s

if TYPE_CHECKING:
    from batuta.client.kube.client import KubeClient


POLL_S = 1.0
_EXIT_CODES = {"SUCCEEDED": 0, "CANCELLED": 103}


def trial(
    task: Annotated[Path, argument("TASK.yaml", "A task file.")],
    sizes: Annotated[str | None, option("Numbers of GPUs; default: 1, 2, 4 … as far as it may.", "N,…")] = None,
    budget: Annotated[str | None, option("For all of it; default: 5m.", "TIME")] = None,
    each: Annotated[str | None, option("At each size; default: its part of it, 1m at most.", "TIME")] = None,
    priority: Annotated[int | None, option("Of the trial runs, -1000 to 1000; default: the task's.", "P")] = None,
    queue: Annotated[str | None, option("The queue they wait in.", names="--queue -q", complete="queues")] = None,
    detach: Annotated[bool, flag("--detach -d", "Return at once.")] = False,
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

    given = {"only": True} | _parse_options(sizes, budget, each, priority)
    submission = Submission.of(task, None, {"queue": queue, "trial": given})
    with connect(home) as client:
        if _is_cluster(client):
            raise typer.Exit(follow_trial_run(client, submission, output, detach=detach))
        raise typer.Exit(_follow(client, submission, output, detach=detach))


def _is_cluster(client: Connection) -> TypeGuard[KubeClient]:
    """Return whether the trial becomes a TrialRun of a cluster, without a Batuta server."""
    if selected_cluster() is None:
        return False
    from batuta.client.kube.client import KubeClient

    return isinstance(client, KubeClient)


def _parse_options(sizes: str | None, budget: str | None, each: str | None, priority: int | None) -> dict[str, Any]:
    """Return the values of the options; raise all their problems together."""
    problems: list[Problem] = []
    if priority is not None and (cluster := selected_cluster()) is not None and cluster.explicit:
        problems.append(
            Problem("--priority is a number, and a cluster has classes", fix="spec.priorityClassName does it")
        )
    found: dict[str, Any] = {} if priority is None else {"priority": priority}
    if sizes is not None:
        words = [word.strip() for word in sizes.split(",")]
        if all(word.isascii() and word.isdigit() and 0 < len(word) < 7 for word in words):
            found["sizes"] = [int(word) for word in words]
        else:
            problems.append(Problem(f"--sizes: {sizes[:60]!r} is no list of numbers", fix="as in 1,2,4"))
    for key, name, text in (("budget_s", "--budget", budget), ("each_s", "--each", each)):
        if text is not None:
            with collect_problems(problems):
                found[key] = parse_duration_s(text, name)
    refuse(problems)
    return found


def _follow(client: Connection, submission: Any, output: Output, *, detach: bool) -> int:
    submitted = client.send_submission(submission)
    job = submitted.job
    out.print_notes(submitted.notes)
    later = f"{command_line('explain', job.id)} shows what is measured so far"
    if detach:
        return _detached(job, output, f"job {job.label} is tried out", later)
    try:
        with out.spinner(f"job {job.label} is tried out") as status:
            printed: set[int] = set()

            def look(now: Job) -> None:
                if (found := client.explain(now).trial) is not None:
                    print_new_runs(found, printed, status.update)

            job = client.wait(job, tell=look)
    except KeyboardInterrupt:
        out.print_stderr(f"\ndetached; {later}")
        return 0
    found = client.explain(job).trial
    if output is Output.JSON:
        out.print_json(found)
    elif found is not None:
        print_trial(found)
    return _EXIT_CODES.get(job.state, 100)


def _detached(made: Any, output: Output, sentence: str, later: str) -> int:
    if output is Output.JSON:
        out.print_json(made)
    else:
        typer.echo(sentence)
        out.print_stderr(later)
    return 0


def print_new_runs(found: Trial, printed: set[int], show: Callable[[str], None]) -> None:
    """Print each measured run once and add its size to `printed`; `show` the run that goes on."""
    from rich.markup import escape

    for run in found.runs:
        if run.state in ("waits", "runs"):
            show(escape(f"{out.format_gpus(run.gpus)}: {run.state} (job {run.run})"))
        elif run.state not in ("planned", "not tried") and run.gpus not in printed:
            printed.add(run.gpus)
            out.print_stderr(f"{out.format_gpus(run.gpus)}: {_speed(run) or run.state}")


def _speed(run: TrialRun) -> str:
    return "" if run.units_per_s is None else f"{run.units_per_s:.3g} {run.unit}/s"


def _memory(mib: int | None) -> str:
    if mib is None:
        return DASH
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def _result(run: TrialRun) -> str:
    return f"{run.state}: {run.detail}" if run.detail and run.units_per_s is None else run.state


_RUNS: tuple[Column[TrialRun], ...] = (
    Column("GPUS", lambda run: str(run.gpus), right=True),
    Column("TYPE", lambda run: run.gpu_type or DASH, drop=3),
    Column("STEPS/S", lambda run: out.format_number(run.steps_per_s, ".3g"), right=True),
    Column("SPEED", lambda run: _speed(run) or DASH, right=True, drop=1),
    Column("MEMORY", lambda run: _memory(run.memory_mib), right=True),
    Column("BUSY", lambda run: out.format_number(run.utilisation, ".0%"), right=True),
    Column("EFFICIENCY", lambda run: out.format_number(run.efficiency, ".0%"), right=True),
    Column("RESULT", _result, least=12, fold=True),
)


def print_trial(found: Trial) -> None:
    """Print a row for each size, and the conclusion."""
    out.print_table(_RUNS, found.runs)
    if found.sentence:
        typer.echo(f"\n{found.sentence}")


def follow_trial_run(client: KubeClient, submission: Any, output: Output, *, detach: bool) -> int:
    """Create a TrialRun, print its runs as they are measured, and return the exit code. Ctrl-C detaches."""
    name, notes = client.try_out(submission)
    out.print_notes(notes)
    later = f"kubectl get trialrun -n {client.namespace} {name} -o yaml shows what is measured so far"
    if detach:
        return _detached({"trial": f"{client.namespace}/{name}"}, output, f"trial {name} is made", later)
    printed: set[int] = set()
    try:
        with out.spinner(f"{name} is tried out") as status:
            state, found = client.trial(name)
            while not found.over:
                print_new_runs(found, printed, status.update)
                time.sleep(POLL_S)
                state, found = client.trial(name)
            print_new_runs(found, printed, status.update)
    except KeyboardInterrupt:
        out.print_stderr(f"\ndetached; {later}")
        return 0
    out.print_result(found, output, print_trial)
    return _EXIT_CODES.get(state, 100)
