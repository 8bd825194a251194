"""`batuta queues try`: what quota would do, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batuta.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from batuta.cli.quota_story import Played
    from batuta.quota.trial import Standing
    from batuta.spec.quota_case import Action, Case, PodSet


def try_out(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Cases: objects and steps, in YAML or JSON.")],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only what differs from what the file expects.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Try quota out: who would get it, who would lose it and why, step by step. Needs no server.

    Where the file says what is expected, differences are told, and the exit code is 1. A case that is wrong
    is told with all its problems, and does not keep the others from being tried.

    Example: batuta queues try case.yaml

    where case.yaml has the objects of kueue.x-k8s.io, or queues in short form, and steps:

      objects: [{queues: [{name: a, quota: {"*": 4}}]}]

      steps: [{do: {submit: {name: w1, queue: a, requests: {batuta.dev/gpus: 2}}}}]
    """
    from batuta.cli.quota_story import play
    from batuta.cli.terminal import print_json, say
    from batuta.spec.problem import InputError
    from batuta.spec.quota_case_file import sort_out
    from batuta.spec.text_file import read_text

    cases, problems = sort_out(read_text(file), str(file))
    if problems and not cases:
        raise InputError(problems)
    told: list[dict[str, Any]] = []
    wrong = 0
    for case in cases:
        steps = list(play(case))
        wrong += any(one.differences for one in steps)
        if output is Output.JSON:
            told.append({"name": case.name, "steps": [_plain(one.standing) for one in steps]})
            for number, one in enumerate(steps, start=1):
                for difference in one.differences:
                    say(f"{case.name}, step {number}: {difference}")
        elif not quiet or any(one.differences for one in steps):
            _print_case(case, steps)
    if output is Output.JSON:
        print_json(told)
    expecting = sum(any(step.expected for step in case.steps) for case in cases)
    if expecting:
        say(f"{expecting - wrong} of {expecting} cases went as expected")
    if problems:
        raise InputError(problems)
    if wrong:
        raise typer.Exit(1)


def _plain(standing: Standing) -> dict[str, Any]:
    """A step as it stands in files of cases."""
    return {
        "admitted": {name: dict(flavors) for name, flavors in standing.admitted.items()},
        "preempted": [
            {"workload": one.workload, "reason": one.reason}
            | ({"preemption": one.preemption} if one.preemption else {})
            | ({"by": one.by} if one.by else {})
            for one in standing.preempted
        ],
        "pending": {
            name: {"reason": one.reason, "message": one.message} for name, one in standing.pending.items()
        },
    }


def _print_case(case: Case, steps: list[Played]) -> None:
    from rich.text import Text

    from batuta.cli.terminal import show

    show(Text(case.name, style="bold"))
    for note in case.notes:
        show(Text(f"    note: {note}", style="dim"))
    for number, one in enumerate(steps, start=1):
        show(Text(f"{number:>3} {_sentence(one.step.action)}"))
        rows = _rows(one.standing)
        if rows:
            show(_table(rows))
        for difference in one.differences:
            show(_table([(Text("differs", style="bold red"), Text(difference))]))
    show(Text(""))


def _table(rows: list[tuple[Text, ...]]) -> RenderableType:
    """Columns below a step; a long sentence is wrapped within its own."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=9)
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 4))


def _rows(standing: Standing) -> list[tuple[Text, ...]]:
    """Who lost quota, who has some, and who waits: state, name, and where or why."""
    from rich.text import Text

    def row(state: str, style: str, name: str, rest: str) -> tuple[Text, ...]:
        return Text(state, style=style), Text(name, no_wrap=True), Text(rest)

    return [
        *(
            row("preempted", "magenta", one.workload, _why_lost(one.reason, one.preemption, one.by))
            for one in standing.preempted
        ),
        *(
            row("admitted", "green", name, ", ".join(f"{what} in {where}" for what, where in flavors.items()))
            for name, flavors in standing.admitted.items()
        ),
        *(
            row("pending", "yellow", name, f"{one.reason}: {one.message}")
            for name, one in standing.pending.items()
        ),
    ]


def _why_lost(reason: str, preemption: str, by: str) -> str:
    how = f"{reason} ({preemption})" if preemption else reason
    return f"{how} by {by}" if by else how


def _sentence(action: Action) -> str:
    """What happens in a step, for people."""
    from batuta.spec.quota_case import ChangeQuota, Delete, Finish, PatchWorkload, Submit

    match action:
        case Submit():
            pods = " + ".join(map(_pods, action.pod_sets))
            asleep = "" if action.active else ", not active"
            return f"submit {action.name} to {action.queue}: {pods}, priority {action.priority}{asleep}"
        case Finish():
            return f"{action.name} finishes"
        case Delete():
            return f"delete {action.name}"
        case PatchWorkload():
            active = None if action.active is None else str(action.active).lower()
            said = {"active": active, "priority": action.priority, "queue": action.queue}
            changes = ", ".join(f"{key} {value}" for key, value in said.items() if value is not None)
            return f"change {action.name}: {changes or 'nothing'}"
        case ChangeQuota():
            return f"{action.verb.removesuffix('Object')} {action.kind} {action.name}"


def _pods(one: PodSet) -> str:
    from batuta.spec.quantity import show_milli

    asked = ", ".join(
        f"{show_milli(amount, is_bytes=resource == 'memory')} {resource}" for resource, amount in one.requests
    )
    least = f" (at least {one.min_count})" if one.min_count is not None else ""
    return f"{one.count} × {asked or 'nothing'}{least}"
