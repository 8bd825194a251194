"""Options that several verbs share, and their way from text to values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batuta.backends.sim.experiment import Experiment
    from batuta.spec.problem import Problem


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class Knowledge(StrEnum):
    """What a policy may know in the goodput replay."""

    OWN = "own"
    HISTORY = "history"
    HISTORY_TOTALS = "history+totals"
    ORACLE = "oracle"


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="COUNTxGPUS[:TYPE],… as in 16x4:T4,2x8:A100, or a YAML file.",
        metavar="CLUSTER",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of the workload; by default told by its first line.")
]
ElasticOption = Annotated[
    str,
    typer.Option(
        "--elastic",
        help="Size range for jobs of rigid traces as factors of their size, as in 0.5:2, or 'rigid'.",
        metavar="LOW:HIGH",
    ),
]
SpeedOption = Annotated[
    str,
    typer.Option(
        "--speed",
        help="How jobs of rigid traces scale: linear, amdahl:F, power:E, alpha-beta:A:B, table:…",
        metavar="MODEL",
    ),
]
RoundOption = Annotated[
    str | None,
    typer.Option("--round", help="Decide in rounds of this length, as in 60s; default: at events."),
]
RestartOption = Annotated[
    str | None,
    typer.Option(
        "--restart", help="Time lost at a start, resize or migration, as in 30s; default: each job's."
    ),
]
IntervalOption = Annotated[
    str, typer.Option("--min-interval", help="Not more than one change of plan in this time, as in 120s.")
]
WeighOption = Annotated[
    bool, typer.Option("--weigh/--no-weigh", help="Drop changes that cost more than they gain.")
]
ProfilesOption = Annotated[
    Path | None,
    typer.Option(
        "--profiles", help="Folder of measured profiles (goodput replay); default: beside the workload."
    ),
]
KnowledgeOption = Annotated[
    Knowledge, typer.Option("--knowledge", help="What a policy may know in the goodput replay.")
]
LengthsOption = Annotated[
    str,
    typer.Option(
        "--lengths",
        help="Shares of their epochs that jobs of the goodput replay run for.",
        metavar="LEAST-MOST",
    ),
]
FailuresOption = Annotated[
    str | None,
    typer.Option("--failures", help="Failures: mtbf=30d,mttr=2h or a script file.", metavar="SPEC|FILE"),
]
QueuesOption = Annotated[
    Path | None,
    typer.Option(
        "--queues", help="Quota: a file of Kueue's objects, or of queues in short form.", metavar="FILE"
    ),
]
LocalityOption = Annotated[
    float,
    typer.Option(
        "--locality",
        help="Factor on the speed of a job that spans nodes, as in 0.9; 1 means that it does not matter.",
        min=0.01,
        max=1.0,
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="Only the first N jobs.", min=1, metavar="N")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for programs.")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write a self-contained HTML report here.")
]


def checked(experiment: Experiment, problems: list[Problem]) -> Experiment:
    """Looks at everything an experiment names before anything runs; adds what is wrong to `problems`."""
    from dataclasses import replace

    from batuta import bootstrap
    from batuta.spec.problem import InputError, Problem

    try:
        bootstrap.find_policy(experiment.policy)
    except InputError as error:
        problems.extend(error.problems)
    workload = None
    try:
        workload = bootstrap.workload_of(experiment)
    except InputError as error:
        problems.extend(error.problems)
    cluster = experiment.cluster or (bootstrap.default_cluster(workload) if workload else "8x4")
    if cluster is None:
        problems.append(Problem("which cluster?", fix="add --cluster, as in --cluster 16x4:T4"))
    else:
        try:
            bootstrap.cluster_nodes(cluster)
        except InputError as error:
            problems.extend(error.problems)
    try:
        bootstrap.quota_for(experiment)
    except InputError as error:
        problems.extend(error.problems)
    return replace(experiment, cluster=cluster or "")


def durations(problems: list[Problem], **texts: str | None) -> dict[str, float | None]:
    """Parses several durations, collecting what is wrong."""
    from batuta.spec.duration import parse_duration_s
    from batuta.spec.problem import InputError

    found: dict[str, float | None] = {}
    for name, text in texts.items():
        try:
            found[name] = None if text is None else parse_duration_s(text, f"--{name.replace('_', '-')}")
        except InputError as error:
            problems.extend(error.problems)
    return found
