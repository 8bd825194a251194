"""`batuta simulate` and `batuta compare`: run workloads under one policy or several."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batuta.cli.options import Output, OutputOption, flag, option
from batuta.spec.problem import Problem, collect_problems, refuse
from batuta.spec.quantity import parse_duration_s, show_duration

if TYPE_CHECKING:
    from rich.console import Console

    from batuta.backends.sim.experiment import Experiment
    from batuta.backends.sim.recorder import DecisionHistory
    from batuta.backends.sim.result import RunResult


Knowledge = StrEnum(
    "Knowledge", {"OWN": "own", "HISTORY": "history", "HISTORY_TOTALS": "history+totals", "ORACLE": "oracle"}
)


ClusterOption = Annotated[
    str | None, option("COUNTxGPUS[:TYPE],… as in 16x4:T4,2x8:A100, or a YAML file.", "CLUSTER", names="--cluster -c")
]
FormatOption = Annotated[str | None, option("Format of the workload; by default told by its first line.")]
ElasticOption = Annotated[
    str, option("Size range for jobs of rigid traces as factors of their size, as in 0.5:2, or 'rigid'.", "LOW:HIGH")
]
SpeedOption = Annotated[
    str, option("How jobs of rigid traces scale: linear, amdahl:F, power:E, alpha-beta:A:B, table:…", "MODEL")
]
RoundOption = Annotated[str | None, option("Decide in rounds of this length, as in 60s; default: at events.")]
RestartOption = Annotated[
    str | None, option("Time lost at a start, resize or migration, as in 30s; default: each job's.")
]
IntervalOption = Annotated[str, option("Not more than one change of plan in this time, as in 120s.")]
WeighOption = Annotated[bool, flag("--weigh/--no-weigh", "Drop changes that cost more than they gain.")]
ProfilesOption = Annotated[
    Path | None, option("Folder of measured profiles (goodput replay); default: beside the workload.")
]
KnowledgeOption = Annotated[Knowledge, option("What a policy may know in the goodput replay.")]
LengthsOption = Annotated[str, option("Shares of their epochs that jobs of the goodput replay run for.", "LEAST-MOST")]
FailuresOption = Annotated[str | None, option("Failures: mtbf=30d,mttr=2h or a script file.", "SPEC|FILE")]
QueuesOption = Annotated[Path | None, option("Quota: a file of Kueue's objects, or of queues in short form.", "FILE")]
LocalityOption = Annotated[
    float,
    option(
        "Factor on the speed of a job that spans nodes, as in 0.9; 1 means that it does not matter.", min=0.01, max=1.0
    ),
]
LimitOption = Annotated[int | None, option("Only the first N jobs.", "N", min=1)]
ReportOption = Annotated[Path | None, option("Write a self-contained HTML report here.")]
JobsOption = Annotated[Path | None, option("Write results per job here (.jsonl or .parquet).")]


def simulate(
    ctx: typer.Context,
    workload: Annotated[str, option("A workload file, or 'sample'.", names="--workload -w")] = "sample",
    policy: Annotated[str, option("See `batuta policies`.", names="--policy -p", complete="policies")] = "rent",
    cluster: ClusterOption = None,
    format: FormatOption = None,
    elastic: ElasticOption = "rigid",
    speed: SpeedOption = "linear",
    round: RoundOption = None,
    restart: RestartOption = None,
    min_interval: IntervalOption = "0s",
    weigh: WeighOption = True,
    profiles: ProfilesOption = None,
    knowledge: KnowledgeOption = Knowledge.HISTORY,
    lengths: LengthsOption = "1",
    failures: FailuresOption = None,
    queues: QueuesOption = None,
    locality: LocalityOption = 1.0,
    limit: LimitOption = None,
    seed: Annotated[int, option("0: the workload itself; others draw its jobs anew.", min=0)] = 0,
    explain: Annotated[str | None, option("Print the story of one job.", "JOB")] = None,
    report: ReportOption = None,
    jobs: JobsOption = None,
    timeline: Annotated[Path | None, option("Write the cluster over time here (.jsonl or .parquet).")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a workload under one policy.

    Examples:
      batuta simulate --workload sample --policy afs-l --report out.html
      batuta simulate -w jobs.csv -c 16x4:T4 -p elastic-fifo --elastic 0.5:2 --speed amdahl:0.05
      batuta simulate -w sample -p tiresias --explain job-017
    """
    from batuta.backends.sim.experiment import workload_of
    from batuta.backends.sim.recorder import DecisionHistory

    problems: list[Problem] = []
    given = _experiment(ctx.params, problems)
    experiment = _check_experiment(replace(given, policy=policy, workload=workload, seed=seed), problems)
    if round is not None and given.round_s == 0:
        problems.append(Problem("--round must be longer than 0s"))
    if explain is not None and not problems:
        known = workload_of(experiment).jobs
        if all(sim.job.id != explain for sim in known):
            problems.append(Problem(f"no job {explain!r} in {workload}", fix=f"ids look like {known[0].job.id}"))
    _check_outputs(report, [jobs, timeline], problems)
    refuse(problems)
    story = DecisionHistory(explain) if explain else None
    run = _with_progress(experiment, story)
    _write_results([run], report, jobs, timeline)
    if output is Output.JSON:
        from batuta.backends.sim.result import summarise

        summary = summarise(run)
        if story is not None:
            summary["explain"] = _story_json(story)
        typer.echo(json.dumps(summary, indent=2))
    else:
        from batuta.report.cli_table import run_view

        _table_console().print(run_view(run))
        if story is not None:
            _print_story(story)
    if report is not None:
        typer.echo(f"report: {report}", err=True)
    if not run.complete:
        done = sum(1 for job in run.jobs if job.end_s == job.end_s)
        typer.echo(f"interrupted: {done} of {len(run.jobs)} jobs that had arrived were over", err=True)
        raise typer.Exit(130)


def _with_progress(experiment: Experiment, story: DecisionHistory | None) -> RunResult:
    """Run the experiment, with a progress bar on a terminal."""
    from batuta.backends.sim.experiment import run_experiment, workload_of

    watch = story.watch if story else None
    if not sys.stderr.isatty():
        return run_experiment(experiment, watch=watch)
    from rich.console import Console
    from rich.progress import Progress

    total = len(workload_of(experiment).jobs)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{experiment.policy}", total=min(total, experiment.limit or total))
        return run_experiment(experiment, tell=lambda _, over: bar.update(task, completed=over), watch=watch)


def _story_json(story: DecisionHistory) -> list[dict[str, object]]:
    return [
        {
            "time_s": chapter.time_s,
            "gpus": chapter.decision.gpus,
            "reason": chapter.decision.reason.name,
            "message": str(chapter.decision),
            "evidence": dict(chapter.decision.evidence),
            "command": chapter.command,
        }
        for chapter in story.changes
    ]


def _print_story(story: DecisionHistory) -> None:
    typer.echo(f"\nThe story of {story.job}:")
    for chapter in story.changes:
        line = f"  {show_duration(chapter.time_s):>9}  {chapter.decision.gpus:>3} GPUs  {chapter.decision}"
        typer.echo(f"{line}  [{chapter.command}]" if chapter.command else line)


def compare(
    ctx: typer.Context,
    workload: Annotated[
        list[str] | None, option("A workload file, or 'sample'; may be repeated.", names="--workload -w")
    ] = None,
    policies: Annotated[
        list[str] | None,
        option(
            "Names with commas, or 'all' (default) for all but the replays; may be repeated.",
            "NAMES",
            names="--policies -p",
        ),
    ] = None,
    cluster: ClusterOption = None,
    format: FormatOption = None,
    elastic: ElasticOption = "rigid",
    speed: SpeedOption = "linear",
    round: RoundOption = None,
    restart: RestartOption = None,
    min_interval: IntervalOption = "0s",
    weigh: WeighOption = True,
    profiles: ProfilesOption = None,
    knowledge: KnowledgeOption = Knowledge.HISTORY,
    lengths: LengthsOption = "1",
    failures: FailuresOption = None,
    queues: QueuesOption = None,
    locality: LocalityOption = 1.0,
    limit: LimitOption = None,
    seeds: Annotated[int, option("How often, each time with other draws of the jobs.", min=1)] = 1,
    parallel: Annotated[int, option("Runs at the same time.", names="--parallel -j", min=1)] = 2,
    baseline: Annotated[str | None, option("Policy that ratios are to; default: fifo, else the first.")] = None,
    report: ReportOption = None,
    jobs: JobsOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare policies on the same workloads and the same seeds.

    Examples:
      batuta compare --workload sample --report out.html
      batuta compare -p fifo,elastic-fifo,afs-l -w trace.csv -c 16x8 --elastic 0.5:2 --seeds 8
    """
    from batuta.policies.registry import policy_names

    problems: list[Problem] = []
    asked = [name.strip() for text in policies or ["all"] for name in text.split(",") if name.strip()]
    every = [name for name in policy_names() if not name.endswith("-replay")]
    names = list(dict.fromkeys(name for one in asked for name in (every if one == "all" else [one])))
    if not names:
        problems.append(Problem("no policy to compare", fix="name some with --policies a,b,c"))
    chosen_baseline = baseline or ("fifo" if "fifo" in names else (names or [""])[0])
    if baseline is not None and baseline not in names:
        problems.append(Problem(f"--baseline {baseline} is not among the policies"))
    experiments: list[Experiment] = []
    given = _experiment(ctx.params, problems)
    for path, name in product(dict.fromkeys(workload or ["sample"]), names):
        own: list[Problem] = []
        base = _check_experiment(replace(given, policy=name, workload=path), own)
        problems.extend(problem for problem in own if problem not in problems)
        experiments.extend(replace(base, seed=seed) for seed in range(seeds))
    _check_outputs(report, [jobs], problems)
    refuse(problems)
    runs = _run_all(experiments, parallel)
    if runs:
        _write_results(runs, report, jobs, None, baseline=chosen_baseline)
        _print_comparison(runs, chosen_baseline, output)
        if report is not None:
            typer.echo(f"report: {report}", err=True)
    if len(runs) < len(experiments):
        typer.echo(f"interrupted: {len(runs)} of {len(experiments)} runs are complete", err=True)
        raise typer.Exit(130)


def _run_all(experiments: Sequence[Experiment], parallel: int) -> list[RunResult]:
    """Run all experiments, `parallel` at a time; after Ctrl-C, return the complete ones."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from batuta.backends.sim.experiment import run_experiments

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulating", total=len(experiments))
        return run_experiments(experiments, parallel, lambda: bar.advance(task))


def _check_experiment(experiment: Experiment, problems: list[Problem]) -> Experiment:
    """Check all that an experiment names before it runs; add what is wrong to `problems`."""
    from batuta.backends.sim.experiment import default_cluster, quota_for, workload_of
    from batuta.engine.profile import find_policy
    from batuta.spec.cluster import read_cluster

    with collect_problems(problems):
        find_policy(experiment.policy)
    cluster: str | None = experiment.cluster or "8x4"
    with collect_problems(problems):
        workload = workload_of(experiment)
        cluster = experiment.cluster or default_cluster(workload)
    if cluster is None:
        problems.append(Problem("which cluster?", fix="add --cluster, as in --cluster 16x4:T4"))
    else:
        with collect_problems(problems):
            read_cluster(cluster)
    with collect_problems(problems):
        quota_for(experiment)
    return replace(experiment, cluster=cluster or "")


def _experiment(given: Mapping[str, Any], problems: list[Problem]) -> Experiment:
    """Return the experiment that the options of `simulate` and `compare` alike describe, without a policy."""
    from batuta.backends.sim.experiment import Experiment

    values: dict[str, Any] = {"cluster": given["cluster"] or "", "keep_segments": given["report"] is not None}
    for name in ("format", "elastic", "speed", "limit", "weigh", "lengths", "failures", "locality"):
        values[name] = given[name]
    for name in ("profiles", "queues", "knowledge"):
        values[name] = None if given[name] is None else str(given[name])
    for name in ("round", "restart", "min_interval"):
        if (text := given[name]) is not None:
            with collect_problems(problems):
                values[f"{name}_s"] = parse_duration_s(text, f"--{name.replace('_', '-')}")
    return Experiment(policy="", workload="", **values)


def _check_outputs(report: Path | None, tables: Sequence[Path | None], problems: list[Problem]) -> None:
    """Look at where results shall go before anything runs; add what is wrong to `problems`."""
    from batuta.report.result_files import NotWritable, check_path, check_results_path

    for path, check in ((report, check_path), *((table, check_results_path) for table in tables)):
        if path is not None:
            try:
                check(path)
            except NotWritable as error:
                problems.append(Problem(str(error)))


def _write_results(
    runs: Sequence[RunResult],
    report: Path | None,
    jobs: Path | None,
    timeline: Path | None,
    baseline: str | None = None,
) -> None:
    from batuta.report.page import Provenance, write_report
    from batuta.report.result_files import write_jobs, write_timeline

    if jobs is not None:
        write_jobs(jobs, runs)
    if timeline is not None:
        write_timeline(timeline, runs)
    if report is not None:
        command = shlex.join(["batuta", *sys.argv[1:]])
        write_report(report, runs, baseline=baseline, origin=Provenance(command=command))


def _print_comparison(runs: Sequence[RunResult], baseline: str, output: Output) -> None:
    from batuta.report.cli_table import comparison_view
    from batuta.report.comparison import compare, comparison_json

    console, compared = _table_console(), compare(runs, baseline)
    if output is Output.JSON:
        typer.echo(json.dumps(comparison_json(compared), indent=2))
    else:
        console.print(comparison_view(compared, width=console.width))


def _table_console() -> Console:
    """Return a console as wide as the terminal; wide enough for a table where there is none, as in a pipe."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120)
