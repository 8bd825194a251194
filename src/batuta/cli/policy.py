"""`batuta policy`, `policies` and `allocate`: list and set policies, and run one on a snapshot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batuta.apitypes.resources import PolicyAnswer
from batuta.cli.options import HomeOption, Output, OutputOption, argument, connect, connect_to_server, option
from batuta.cli.output import Column, print_result, print_table
from batuta.cli.verbs import CommandGroup
from batuta.spec.problem import InputError, Problem, collect_problems, read_text, refuse

if TYPE_CHECKING:
    from batuta.core.policy import Policy as SchedulingPolicy
    from batuta.core.view import PoolView


app = typer.Typer(cls=CommandGroup, name="policy", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def policy(ctx: typer.Context, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show or change the policy that decides.

    Examples:
      batuta policy
      batuta policy set afs-l
    """
    if ctx.invoked_subcommand is None:
        show(output, home)


@app.command()
def show(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Show which policy decides now.

    Example: batuta policy show
    """
    with connect(home) as client:
        print_result(client.policy(), output, _print_policy)


@app.command(name="set")
def set_policy(
    name: Annotated[str, argument("NAME", "See batuta policy list.", complete="policies")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Let another policy decide from the next cycle on. Jobs that run are resized, not restarted from zero.

    Example: batuta policy set elastic-tiresias
    """
    with connect(home) as client:
        print_result(client.set_policy(name), output, _print_policy)


@app.command()
def shadow(
    name: Annotated[str, argument("NAME", "See batuta policy list; off ends it.", complete="policies")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Let a second policy watch, and note what it would have done. It touches nothing.

    Example: batuta policy shadow afs-l
    """
    with connect_to_server(home) as client:
        report = client.set_shadow("" if name == "off" else name)
    sentence = f"{report.policy} watches: batuta shadow tells what it would have done"
    print_result(report, output, lambda _: typer.echo(sentence if report.policy else "no policy watches any more"))


@app.command(name="list")
def list_policies(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List the policies that the server knows; a star marks the one that decides.

    Example: batuta policy list
    """
    with connect(home) as client:
        print_result(client.policy(), output, _print_policies)


def _print_policy(known: PolicyAnswer) -> None:
    summary = next((one.summary for one in known.policies if one.name == known.name), "")
    typer.echo(f"{known.name}: {summary}" if summary else known.name)
    if known.note:
        typer.echo(known.note, err=True)


def _print_policies(known: PolicyAnswer) -> None:
    rows = [("*" if one.name == known.name else "", one.name, one.summary) for one in known.policies]
    print_table((Column(""), Column("POLICY"), Column("WHAT IT DOES", least=20)), rows)


def policies(output: OutputOption = Output.TABLE) -> None:
    """List the policies, built in and installed.

    Example: batuta policies
    """
    from batuta.policies.registry import policy_summaries

    known = dict(policy_summaries())
    if output is Output.JSON:
        typer.echo(json.dumps([{"name": name, "summary": text} for name, text in known.items()], indent=2))
        return
    width = max(map(len, known))
    for name, text in known.items():
        typer.echo(f"{name:<{width}}  {text}")


PolicyOption = Annotated[str, option("Name of a policy, or a Python file that has one.", "POLICY", names="--policy -p")]
InputOption = Annotated[str, option("A JSON file; - reads standard input.", "FILE", names="--input -i")]


def allocate(policy: PolicyOption, input: InputOption, output: OutputOption = Output.JSON) -> None:
    """Run one policy on a snapshot: how many GPUs for each job?

    Example: batuta allocate --policy elastic-fifo --input pool.json

    where pool.json is {"capacity": {"gpu": 3}, "jobs": [{"id": "a", "submit_s": 0, "size": 2, "min": 1,
    "max": 4, "remaining_s": 600, "speed": [0, 1, 1.8, 2.5, 3.1]}]}

    Optional: now_s; for a job first_start_s, tier, sizes as in [1, 2, 4]. A list of snapshots gives a list.
    """
    from batuta.engine.profile import find_policy
    from batuta.spec.snapshot import read_snapshots

    problems: list[Problem] = []
    with collect_problems(problems):
        chosen = find_policy(policy)
    with collect_problems(problems):
        snapshots = read_snapshots(_read_snapshots(input), "standard input" if input == "-" else input)
    refuse(problems)
    answers = [_run_policy(chosen, view) for view in snapshots.views]
    if output is Output.TABLE:
        for view, answer in zip(snapshots.views, answers, strict=True):
            _print_allocation(view, answer)
    else:
        shown = answers if snapshots.is_list else answers[0]
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))


def _read_snapshots(source: str) -> str:
    if source != "-":
        return read_text(Path(source))
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError.of(f"is not UTF-8 text: byte {error.start}", file="standard input") from None


def _run_policy(policy: SchedulingPolicy, view: PoolView) -> dict[str, Any]:
    from batuta.policies.explanation import explain_allocation

    gpus = policy.allocate(view)
    return {
        "policy": policy.name,
        "allocation": dict(zip(view.ids, gpus.tolist(), strict=True)),
        "reasons": dict(zip(view.ids, explain_allocation(policy.name, view, gpus), strict=True)),
    }


def _print_allocation(view: PoolView, answer: dict[str, Any]) -> None:
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
