"""`batuta simulate`: one policy on one workload."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli import options as opt

if TYPE_CHECKING:
    from batuta.backends.sim.experiment import Experiment
    from batuta.backends.sim.result import RunResult
    from batuta.backends.sim.story import Story


def simulate(
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="A workload file, or 'sample'.")
    ] = "sample",
    policy: Annotated[str, typer.Option("--policy", "-p", help="See `batuta policies`.")] = "rent",
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
    seed: Annotated[
        int, typer.Option("--seed", help="0: the workload itself; others draw its jobs anew.", min=0)
    ] = 0,
    explain: Annotated[
        str | None, typer.Option("--explain", help="Print the story of one job.", metavar="JOB")
    ] = None,
    report: opt.ReportOption = None,
    jobs: Annotated[
        Path | None, typer.Option("--jobs", help="Write results per job here (.jsonl or .parquet).")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="Write the cluster over time here (.jsonl or .parquet).")
    ] = None,
    output: opt.OutputOption = opt.Output.TABLE,
) -> None:
    """Replay a workload under one policy.

    Examples:

      batuta simulate --workload sample --policy afs-l --report out.html

      batuta simulate -w jobs.csv -c 16x4:T4 -p elastic-fifo --elastic 0.5:2 --speed amdahl:0.05

      batuta simulate -w sample -p tiresias --explain job-017
    """
    from batuta import bootstrap
    from batuta.backends.sim.experiment import Experiment
    from batuta.backends.sim.story import Story
    from batuta.spec.problem import InputError, Problem

    problems: list[Problem] = []
    times = opt.durations(problems, round=round, restart=restart, min_interval=min_interval)
    experiment = opt.checked(
        Experiment(
            policy=policy,
            workload=workload,
            cluster=cluster or "",
            format=format,
            elastic=elastic,
            speed=speed,
            limit=limit,
            seed=seed,
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
        problems,
    )
    if round is not None and times.get("round") == 0:
        problems.append(Problem("--round must be longer than 0s"))
    if explain is not None and not problems:
        known = bootstrap.workload_of(experiment).jobs
        if all(sim.job.id != explain for sim in known):
            problems.append(
                Problem(f"no job {explain!r} in {workload}", fix=f"ids look like {known[0].job.id}")
            )
    bootstrap.check_outputs(report, [jobs, timeline], problems)
    if problems:
        raise InputError(problems)

    story = Story(explain) if explain else None
    run = _with_progress(experiment, story)
    bootstrap.write_results([run], report, jobs, timeline, command=sys.argv[1:])
    if output is opt.Output.JSON:
        from batuta.backends.sim.result import summarise

        told = summarise(run)
        if story is not None:
            told["explain"] = _story_json(story)
        typer.echo(json.dumps(told, indent=2))
    else:
        bootstrap.print_run(run)
        if story is not None:
            _print_story(story)
    if report is not None:
        typer.echo(f"report: {report}", err=True)
    if not run.complete:
        done = sum(1 for job in run.jobs if job.end_s == job.end_s)
        typer.echo(f"interrupted: {done} of {len(run.jobs)} jobs that had arrived were over", err=True)
        raise typer.Exit(130)


def _with_progress(experiment: Experiment, story: Story | None) -> RunResult:
    """A bar on a terminal for what takes longer than a second; nothing elsewhere."""
    from batuta import bootstrap

    watch = story.watch if story else None
    if not sys.stderr.isatty():
        return bootstrap.run_experiment(experiment, watch=watch)
    from rich.console import Console
    from rich.progress import Progress

    total = len(bootstrap.workload_of(experiment).jobs)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{experiment.policy}", total=min(total, experiment.limit or total))
        return bootstrap.run_experiment(
            experiment, tell=lambda _, over: bar.update(task, completed=over), watch=watch
        )


def _story_json(story: Story) -> list[dict[str, object]]:
    return [
        {
            "time_s": chapter.time_s,
            "gpus": chapter.decision.gpus,
            "reason": chapter.decision.reason.name,
            "message": str(chapter.decision),
            "evidence": dict(chapter.decision.evidence),
            "command": chapter.command,
        }
        for chapter in story.chapters
    ]


def _print_story(story: Story) -> None:
    from batuta.spec.duration import show_duration

    typer.echo(f"\nThe story of {story.job}:")
    for chapter in story.chapters:
        line = f"  {show_duration(chapter.time_s):>9}  {chapter.decision.gpus:>3} GPUs  {chapter.decision}"
        typer.echo(f"{line}  [{chapter.command}]" if chapter.command else line)
