"""`batuta allocate`: run one policy on a snapshot and print what it decides."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batuta.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from batuta.core.policy import Policy
    from batuta.core.view import PoolView

PolicyOption = Annotated[
    str,
    typer.Option("--policy", "-p", help="Name of a policy, or a Python file that has one.", metavar="POLICY"),
]
InputOption = Annotated[
    str, typer.Option("--input", "-i", help="A JSON file; - reads standard input.", metavar="FILE")
]


def allocate(policy: PolicyOption, input: InputOption, output: OutputOption = Output.JSON) -> None:
    """Run one policy on a snapshot: how many GPUs for each job?

    Example: batuta allocate --policy elastic-fifo --input pool.json

    where pool.json is {"capacity": {"gpu": 3}, "jobs": [{"id": "a", "submit_s": 0, "size": 2, "min": 1,
    "max": 4, "remaining_s": 600, "speed": [0, 1, 1.8, 2.5, 3.1]}]}

    Optional: now_s; for a job first_start_s, tier, sizes as in [1, 2, 4]. A list of snapshots gives a list.
    """
    from batuta.bootstrap import find_policy
    from batuta.spec.problem import InputError, Problem
    from batuta.spec.snapshot import read_snapshots

    problems: list[Problem] = []
    try:
        chosen = find_policy(policy)
    except InputError as error:
        problems.extend(error.problems)
    try:
        snapshots = read_snapshots(_read(input), "standard input" if input == "-" else input)
    except InputError as error:
        problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    answers = [_answer(chosen, view) for view in snapshots.views]
    if output is Output.TABLE:
        for view, answer in zip(snapshots.views, answers, strict=True):
            _print_table(view, answer)
    else:
        import json

        shown = answers if snapshots.is_list else answers[0]
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))


def _read(source: str) -> str:
    from pathlib import Path

    from batuta.spec.problem import InputError
    from batuta.spec.text_file import read_text

    if source != "-":
        return read_text(Path(source))
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError.of(f"is not UTF-8 text: byte {error.start}", file="standard input") from None


def _answer(policy: Policy, view: PoolView) -> dict[str, Any]:
    from batuta.policies.explanation import explain_allocation

    gpus = policy.allocate(view)
    return {
        "policy": policy.name,
        "allocation": dict(zip(view.ids, gpus.tolist(), strict=True)),
        "reasons": dict(zip(view.ids, explain_allocation(policy.name, view, gpus), strict=True)),
    }


def _print_table(view: PoolView, answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    given = sum(answer["allocation"].values())
    table = Table("job", title=escape(f"{answer['policy']}: {given} of {view.capacity} GPUs given"))
    table.add_column("GPUs", justify="right")
    table.add_column("min–max", justify="right")
    table.add_column("reason")
    for row, (job, gpus) in enumerate(answer["allocation"].items()):
        span = f"{view.min[row]}–{view.max[row]}"
        table.add_row(escape(job), str(gpus), span, escape(answer["reasons"][job]))
    Console().print(table)
