"""`batuta trace`: look at workloads, convert them, generate new ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption, argument, flag, option
from batuta.cli.output import print_result
from batuta.cli.simulate import ClusterOption, ElasticOption, FormatOption, LimitOption, SpeedOption
from batuta.cli.verbs import CommandGroup
from batuta.spec.quantity import parse_duration_s, show_duration

if TYPE_CHECKING:
    from batuta.backends.sim.workload import Workload, WorkloadSummary

app = typer.Typer(
    cls=CommandGroup,
    name="trace",
    help="Look at workloads, convert them, generate new ones.\n\nExample: batuta trace info sample --cluster 8x4",
    no_args_is_help=True,
    rich_markup_mode=None,
)


Source = Annotated[str, argument("FILE", "A workload file, or 'sample'.")]
Target = Annotated[Path, argument("OUT", "The file to write (JSON lines); - prints it.")]
Profiles = Annotated[Path | None, option("Folder of throughputs; default: beside FILE.", "DIR")]
Seed = Annotated[int, option("Same seed, same result.", min=0)]
Force = Annotated[bool, flag("--force", "Replace the file if it exists.")]


@app.command()
def info(
    file: Source,
    *,
    cluster: ClusterOption = None,
    format: FormatOption = None,
    elastic: ElasticOption = "rigid",
    speed: SpeedOption = "linear",
    profiles: Profiles = None,
    seed: Seed = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how many jobs a workload has, how large and long they are, and what they ask of a cluster.

    Examples:
      batuta trace info sample --cluster 8x4
      batuta trace info philly/jobs.csv --cluster 64x8:V100
      batuta trace info workload.jsonl -o json
    """
    from batuta.backends.sim.workload import summarise_workload
    from batuta.spec.cluster import read_cluster

    nodes = read_cluster(cluster) if cluster is not None else None
    summary = summarise_workload(_read(file, format, elastic, speed, profiles, seed), nodes)
    print_result(summary, output, _show)


@app.command()
def convert(
    file: Source,
    out: Target,
    *,
    format: FormatOption = None,
    elastic: ElasticOption = "rigid",
    speed: SpeedOption = "linear",
    profiles: Profiles = None,
    seed: Seed = 0,
    limit: LimitOption = None,
    force: Force = False,
) -> None:
    """Convert a workload of any known format to Batuta's own.

    Examples:
      batuta trace convert philly/jobs.csv philly.jsonl
      batuta trace convert cluster01.csv elastic.jsonl --elastic 0.25:4 --speed elasticflow:T4
      batuta trace convert trace1.csv first.jsonl --limit 200 --elastic 0.5:2 --speed amdahl:0.05
    """
    workload = _read(file, format, elastic, speed, profiles, seed)
    origin = f"converted from {workload.format} file {Path(file).name}"
    notes = workload.notes if workload.format == "batuta" else (*workload.notes, origin)
    _save(replace(workload, jobs=workload.jobs[:limit], notes=notes), out, force)


@app.command()
def generate(
    out: Target,
    *,
    jobs: Annotated[int, option("How many jobs.")] = 1000,
    seed: Seed = 0,
    gpus: Annotated[int, option("GPUs of the cluster it is meant for.")] = 64,
    load: Annotated[float, option("GPU time asked for over GPU time there is.")] = 0.9,
    rate: Annotated[float | None, option("Jobs per hour, instead of a load.")] = None,
    elastic_fraction: Annotated[float, option("Share of jobs that can change size.")] = 1.0,
    users: Annotated[int, option("How many users submit jobs (few submit most).")] = 50,
    sizes: Annotated[str | None, option("How often each size; default: as in Philly.", "GPUS:WEIGHT,…")] = None,
    duration_scale: Annotated[float, option("1: as long as in Philly; 0.1: a tenth.")] = 1.0,
    longest: Annotated[str, option("No job runs longer, such as 6h or 7d.")] = "7d",
    flat: Annotated[bool, flag("--flat", "The same rate at all hours of the week.")] = False,
    start_hour: Annotated[float, option("Hours since Monday 0:00 at which it begins.")] = 0.0,
    name: Annotated[str | None, option("Name of the workload; default: that of the file.")] = None,
    force: Force = False,
) -> None:
    """Generate a workload with the statistics of a real cluster (Philly).

    Examples:
      batuta trace generate --jobs 500 --seed 1 --gpus 64 --load 0.9 week.jsonl
      batuta trace generate --jobs 100 --seed 2 --gpus 16 --duration-scale 0.1 --longest 2h short.jsonl
      batuta trace generate --jobs 1000 --seed 3 --rate 120 --sizes 1:5,2:3,4:2 mixed.jsonl
    """
    from batuta.backends.sim.traces.generator import JOBS_BY_GPUS, GeneratorOptions, parse_sizes
    from batuta.backends.sim.traces.generator import generate as make

    longest_s = parse_duration_s(longest, "the longest run time")
    options = GeneratorOptions(
        jobs=jobs,
        seed=seed,
        name=name or ("generated" if str(out) == "-" else out.stem),
        gpus=gpus,
        load=load,
        jobs_per_hour=rate,
        weekly=not flat,
        start_hour=start_hour,
        sizes=JOBS_BY_GPUS if sizes is None else parse_sizes(sizes),
        duration_scale=duration_scale,
        shortest_s=min(10.0, longest_s),
        longest_s=longest_s,
        users=users,
        elastic_fraction=elastic_fraction,
    )
    _save(make(options), out, force)


def _read(file: str, format: str | None, elastic: str, speed: str, profiles: Path | None, seed: int) -> Workload:
    from batuta.backends.sim.traces.reader import read_workload
    from batuta.backends.sim.traces.trace_format import Elasticity, TraceOptions

    return read_workload(file, format, TraceOptions(Elasticity.parse(elastic, speed), profiles, seed))


def _save(workload: Workload, out: Path, force: bool) -> None:
    from batuta.backends.sim.traces.batuta_jsonl import dump_workload, save_workload

    if str(out) == "-":
        typer.echo(dump_workload(workload), nl=False)
        return
    save_workload(workload, out, overwrite=force)
    typer.echo(f"{len(workload.jobs):,} jobs → {out}", err=True)


def _show(summary: WorkloadSummary) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    # Names come from files: `escape` keeps a bracket in them from being taken for markup.
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("workload", escape(f"{summary.name} ({summary.format})"))
    kinds = f"{summary.elastic_jobs:,} elastic, {summary.shared_jobs:,} with a part of a GPU"
    table.add_row("jobs", f"{summary.jobs:,} ({kinds})")
    table.add_row("users", f"{summary.users:,}" if summary.users else "unknown")
    if summary.applications:
        table.add_row("applications", f"{summary.applications:,}")
    table.add_row("submitted over", show_duration(summary.span_s))
    counts = summary.jobs_by_gpus.items()
    table.add_row("GPUs × jobs", ", ".join(f"{gpus} × {count:,}" for gpus, count in counts))
    if summary.duration_s is None:
        table.add_row("run time", "follows from the profiles")
    else:
        times = (f"{key} {show_duration(value)}" for key, value in summary.duration_s.items())
        table.add_row("run time", ", ".join(times))
    if summary.gpu_hours is not None:
        table.add_row("GPU hours", f"{summary.gpu_hours:,.1f}")
    if summary.cluster_gpus is not None:
        shown = "unknown" if summary.load is None else f"{summary.load:.2f}"
        table.add_row("load", f"{shown} on {summary.cluster_gpus:,} GPUs")
    if summary.impossible_jobs:
        table.add_row("can never run", f"{summary.impossible_jobs:,} jobs: too few GPUs of a type that they accept")
    for note in summary.notes:
        table.add_row("note", escape(note))
    Console().print(table)
