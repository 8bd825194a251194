"""`batuta whatif`: what another policy, more nodes, other quota or one job more would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batuta.cli.eta import ArrivalsOption
from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, complete_nodes, connect_to_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from batuta.client.foresight_answers import Change, JobChange, WhatIf
    from batuta.client.submission import Submission
    from batuta.spec.problem import Problem

_SHOWN = 20


def whatif(
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="Another policy decides.", metavar="NAME")
    ] = None,
    add_nodes: Annotated[
        str, typer.Option("--add-nodes", help="Nodes join, as in 2x8:A100.", metavar="NODES")
    ] = "",
    quota: Annotated[
        list[Path] | None, typer.Option("--quota", help="Quota of a file is applied.", metavar="FILE")
    ] = None,
    submit: Annotated[
        list[Path] | None, typer.Option("--submit", help="A task is submitted.", metavar="TASK.yaml")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="GPUs of the submitted tasks, as in A100:4.", metavar="GPUS")
    ] = None,
    num_nodes: Annotated[
        str | None, typer.Option("--num-nodes", help="Nodes of the submitted tasks.", metavar="N")
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option("--drain", help="A node is drained.", metavar="NODE", autocompletion=complete_nodes),
    ] = None,
    arrivals: ArrivalsOption = False,
    seed: Annotated[int, typer.Option("--seed", help="Other luck of the jobs.", min=0)] = 0,
    all_jobs: Annotated[
        bool, typer.Option("--all", "-a", help="Also jobs for which little changes.")
    ] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Tell what a change would do to every job. Nothing is changed.

    The cluster as it is goes on twice in a simulation, as things are and changed, with the same luck.
    Several changes come together; --quota, --submit and --drain may be repeated.

    Examples:

      batuta whatif --policy afs-l

      batuta whatif --add-nodes 2x8:A100 --drain node-3

      batuta whatif --submit train.yaml --gpus A100:8
    """
    from batuta.cli.terminal import print_json
    from batuta.spec.problem import InputError, Problem

    problems: list[Problem] = []
    if (gpus or num_nodes) and not submit:
        problems.append(Problem("--gpus and --num-nodes are for tasks", fix="add --submit TASK.yaml"))
    overrides = {
        "gpus": gpus,
        "num_nodes": int(num_nodes) if num_nodes and num_nodes.isdecimal() else num_nodes,
    }
    asked: dict[str, Any] = {
        "policy": policy,
        "add_nodes": add_nodes,
        "quota": [(str(path), text) for path in quota or () if (text := _text(path, problems))],
        "submit": [one for path in submit or () if (one := _task(path, overrides, problems))],
        "drain": drain or [],
        "expects_arrivals": arrivals,
        "seed": seed,
    }
    if not any((policy, add_nodes, quota, submit, drain)):
        problems.append(
            Problem("what shall be changed?", fix="--policy, --add-nodes, --quota, --submit or --drain")
        )
    if problems:
        raise InputError(problems)
    told = _ask(asked, home)
    if output is Output.JSON:
        print_json(told)
    else:
        _show(told, all_jobs)


def _text(path: Path, problems: list[Problem]) -> str:
    from batuta.spec.problem import InputError
    from batuta.spec.text_file import read_text

    try:
        return read_text(path)
    except InputError as error:
        problems += error.problems
        return ""


def _task(path: Path, overrides: dict[str, Any], problems: list[Problem]) -> Submission | None:
    from batuta.client.submission import Submission
    from batuta.spec.problem import InputError

    try:
        return Submission.of(path, overrides=overrides)
    except InputError as error:
        problems += error.problems
        return None


def _ask(asked: dict[str, Any], home: Path | None) -> WhatIf:
    from batuta.cli.terminal import spinner
    from batuta.client.errors import NoServerError

    with spinner("looking ahead twice"):
        try:
            with connect_to_server(home) as client:
                return client.what_if(**asked)
        except NoServerError:
            from batuta.bootstrap import offline
            from batuta.cli.journal_source import home_of_stopped
            from batuta.client.decoding import decode
            from batuta.client.foresight_answers import WhatIf
            from batuta.client.foresight_calls import what_if_body

            return decode(WhatIf, offline.what_if(home_of_stopped(home), dict(what_if_body(**asked))))


def _show(told: WhatIf, all_jobs: bool) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import say, show_seconds

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    rows = [
        ("mean completion time", *_row(told.jct_s, show_seconds)),
        ("mean waiting from now on", *_row(told.wait_s, show_seconds)),
        ("finish-time fairness, mean", *_row(told.fairness, number)),
        ("finish-time fairness, worst", *_row(told.worst_fairness, number)),
        ("GPUs in use", *_row(told.utilisation, lambda value: "–" if value is None else f"{value:.0%}")),
        ("until all are done", *_row(told.makespan_s, show_seconds)),
        ("restarts", *_counted(told.restarts)),
        ("preemptions", *_counted(told.preemptions)),
    ]
    if told.unfinished.before or told.unfinished.after:
        rows.append(("jobs that never end", *_row(told.unfinished, lambda value: f"{value or 0:.0f}")))
    columns = (Column(""), Column("NOW", right=True), Column("CHANGED", right=True), Column("", right=True))
    print_table(columns, rows)
    jobs = _most_changed(told, all_jobs)
    if jobs:
        typer.echo("")
        _show_jobs(jobs)
        if len(jobs) < len(told.jobs):
            left = len(told.jobs) - len(jobs)
            say(f"{left} more job{'' if left == 1 else 's'}: --all shows {'it' if left == 1 else 'them'}")
    say(f"{'; '.join(told.assumes)} ({told.runs} runs)")


def _show_jobs(jobs: list[JobChange]) -> None:
    from batuta.cli.table import Column, print_table
    from batuta.cli.terminal import show_seconds

    columns = (
        *(Column("ID"), Column("NAME", drop=2, least=8)),
        *(Column("DONE AFTER", right=True), Column("CHANGED", right=True), Column("", right=True)),
        *(Column("WAITS", right=True, drop=1), Column("CHANGED", right=True, drop=1)),
    )
    rows = [
        (
            *(one.id, one.name, *_row(one.jct_s, show_seconds)),
            *(show_seconds(one.wait_s.before), show_seconds(one.wait_s.after)),
        )
        for one in jobs
    ]
    print_table(columns, rows)


def _row(change: Change, word: Callable[[float | None], str]) -> tuple[str, str, str]:
    before, after = change.before, change.after
    share = f"{after / before - 1:+.0%}" if before and after is not None and before > 0 else ""
    return word(before), word(after), "" if share in ("+0%", "-0%") else share


def _counted(change: Change) -> tuple[str, str, str]:
    """The difference as a number: from a few to some more is a large share and says little."""
    before, after = change.before, change.after
    grown = "" if before is None or after is None else f"{after - before:+.1f}"
    return _tenths(before), _tenths(after), "" if grown in ("+0.0", "-0.0") else grown


def _tenths(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _most_changed(told: WhatIf, all_jobs: bool) -> list[JobChange]:
    """The jobs for which most changes, and all that are new; in their order."""
    if all_jobs:
        return list(told.jobs)

    def weight(one: JobChange) -> float:
        before, after = one.jct_s.before, one.jct_s.after
        if before is None or after is None:
            return float("inf") if before is not after else 0.0
        return abs(after - before)

    chosen = {one.id for one in sorted(told.jobs, key=weight, reverse=True)[:_SHOWN] if weight(one) >= 1.0}
    return [one for one in told.jobs if one.id in chosen]
