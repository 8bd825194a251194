"""`batuta compare`: many policies on many workloads, side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batuta.backends.sim.experiment import Experiment
    from batuta.backends.sim.result import RunResult


def compare(
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="A workload file, or 'sample'; may be repeated."),
    ] = None,
    policies: Annotated[
        str, typer.Option("--policies", "-p", help="Names with commas; 'all' for all but the replays.")
    ] = "all",
    cluster: opt.ClusterOption = None,
    format: opt.FormatOption = None,
    elastic: opt.ElasticOption = "rigid",
    speed: opt.SpeedOption = "linear",
    round: opt.RoundOption = None,
    restart: opt.RestartOption = None,
    min_interval: opt.IntervalOption = "0s",
    weigh: opt.WeighOption = True,
    profiles: opt.ProfilesOption = None,
    knowledge: opt.KnowledgeOption = opt.Knowledge.HISTORY,
    lengths: opt.LengthsOption = "1",
    failures: opt.FailuresOption = None,
    queues: opt.QueuesOption = None,
    locality: opt.LocalityOption = 1.0,
    limit: opt.LimitOption = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="How often, each time with other draws of the jobs.", min=1)
    ] = 1,
    parallel: Annotated[int, typer.Option("--parallel", "-j", help="Runs at the same time.", min=1)] = 2,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Policy that ratios are to; default: fifo, else the first."),
    ] = None,
    report: opt.ReportOption = None,
    jobs: Annotated[
        Path | None, typer.Option("--jobs", help="Write results per job here (.jsonl or .parquet).")
    ] = None,
    output: opt.OutputOption = opt.Output.TABLE,
) -> None:
    """Compare policies on the same workloads and the same seeds.

    Examples:

      batuta compare --workload sample --report out.html

      batuta compare -p fifo,elastic-fifo,afs-l -w trace.csv -c 16x8 --elastic 0.5:2 --seeds 8
    """
    from batuta import bootstrap
    from batuta.backends.sim.experiment import Experiment
    from batuta.policies.registry import policy_names
    from batuta.spec.problem import InputError, Problem

    workloads = workload or ["sample"]
    problems: list[Problem] = []
    times = opt.durations(problems, round=round, restart=restart, min_interval=min_interval)
    if policies == "all":
        names = [name for name in policy_names() if not name.endswith("-replay")]
    else:
        names = list(dict.fromkeys(name.strip() for name in policies.split(",") if name.strip()))
    if not names:
        problems.append(Problem("no policy to compare", fix="name some with --policies a,b,c"))
    chosen_baseline = baseline or ("fifo" if "fifo" in names else (names or [""])[0])
    if baseline is not None and baseline not in names:
        problems.append(Problem(f"--baseline {baseline} is not among the policies"))
    experiments: list[Experiment] = []
    for path in dict.fromkeys(workloads):
        for name in names:
            own: list[Problem] = []
            base = opt.checked(
                Experiment(
                    policy=name,
                    workload=path,
                    cluster=cluster or "",
                    format=format,
                    elastic=elastic,
                    speed=speed,
                    limit=limit,
                    round_s=times.get("round"),
                    min_interval_s=times.get("min_interval") or 0.0,
                    restart_s=times.get("restart"),
                    weigh=weigh,
                    profiles=str(profiles) if profiles else None,
                    knowledge=knowledge.value,
                    lengths=lengths,
                    failures=failures,
                    queues=str(queues) if queues else None,
                    keep_segments=report is not None,
                    locality=locality,
                ),
                own,
            )
            problems.extend(problem for problem in own if problem not in problems)
            experiments.extend(bootstrap.with_seed(base, seed) for seed in range(seeds))
    bootstrap.check_outputs(report, [jobs], problems)
    if problems:
        raise InputError(problems)

    runs = _run_all(experiments, parallel)
    if runs:
        bootstrap.write_results(runs, report, jobs, None, command=sys.argv[1:], baseline=chosen_baseline)
        if output is opt.Output.JSON:
            typer.echo(json.dumps(bootstrap.comparison_json(runs, chosen_baseline), indent=2))
        else:
            bootstrap.print_comparison(runs, chosen_baseline)
        if report is not None:
            typer.echo(f"report: {report}", err=True)
    if len(runs) < len(experiments):
        typer.echo(f"interrupted: {len(runs)} of {len(experiments)} runs are complete", err=True)
        raise typer.Exit(130)


def _run_all(experiments: Sequence[Experiment], parallel: int) -> list[RunResult]:
    """Runs everything, some at a time, with a progress bar; after Ctrl-C what is complete is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from batuta import bootstrap

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("simulating", total=len(experiments))
        return bootstrap.run_experiments(experiments, parallel, lambda: bar.advance(task))
