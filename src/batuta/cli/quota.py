"""`batuta queues apply`, `delete`, `export` and `try`: change quota, or try it without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from batuta.apitypes.queues import QuotaChanged
from batuta.cli.options import HomeOption, Output, OutputOption, argument, connect, flag, option
from batuta.cli.output import print_json, print_notes, print_rich, print_stderr, styled
from batuta.spec.problem import InputError, Problem, collect_problems, did_you_mean, read_text, refuse
from batuta.spec.quantity import show_milli

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from batuta.quota.simulator import Evicted, QuotaSimulator, QuotaStatus
    from batuta.spec.quota_case import Action, PodSet, QuotaCase, Step


STDIN = "-"
_KINDS = {
    "resourceflavor": "ResourceFlavor",
    "flavor": "ResourceFlavor",
    "rf": "ResourceFlavor",
    "clusterqueue": "ClusterQueue",
    "cq": "ClusterQueue",
    "localqueue": "LocalQueue",
    "lq": "LocalQueue",
    "cohort": "Cohort",
    "workloadpriorityclass": "WorkloadPriorityClass",
    "priorityclass": "WorkloadPriorityClass",
}
"""Kinds and their short names, as kubectl takes them: singular or plural, in any case."""


def apply(
    files: Annotated[list[Path] | None, argument("FILE", "Files of quota; - for standard input.")] = None,
    file_options: Annotated[
        list[Path] | None, option("The same, as kubectl has it.", "FILE", names="--file -f")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Check, and say what would change; change nothing.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Apply quota from files: Kueue's objects, or queues in short form.

    All files are checked as a whole, together with what holds already: all errors, or all is applied.
    Objects that the files do not name stay as they are.

    Example: batuta queues apply -f quota.yaml

    where quota.yaml has objects of kueue.x-k8s.io (ResourceFlavor, ClusterQueue, …), or
      queues:
        - {name: team-a, quota: {H100: 8}, cohort: research, weight: 2}
        - {name: night, held: true}
    """
    paths = [*(files or ()), *(file_options or ())]
    if not paths:
        raise InputError.of("which file?", fix="batuta queues apply -f FILE")
    texts = _read_files(paths)
    with connect(home) as client:
        _print_changes(client.apply_quota(texts, dry_run=dry_run), output, dry_run=dry_run)


def delete(
    kind: Annotated[str, argument("KIND", "ClusterQueue (cq), LocalQueue (lq), Cohort, …")],
    name: Annotated[str, argument("NAME", "Name of the object.")],
    namespace: Annotated[str, option("Of a LocalQueue, if it has one.", "NS", names="--namespace -n")] = "",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Remove an object of quota. A queue in which jobs run starts nothing more, and goes with the last one.

    Example: batuta queues delete cq team-a
    """
    with connect(home) as client:
        _print_changes(client.delete_quota_object(_parse_kind(kind), name, namespace), output)


def export(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Print all quota that holds now as YAML, to keep it or to apply it elsewhere.

    Example: batuta queues export > quota.yaml
    """
    with connect(home) as client:
        objects = client.quota_objects()
    if output is Output.JSON:
        print_json(objects)
    elif objects:
        import yaml

        typer.echo(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True), nl=False)
    else:
        print_stderr("there is no quota yet: batuta queues apply -f FILE")


def _read_files(paths: list[Path]) -> list[tuple[str, str]]:
    """Return names and texts of all files; raise all problems of all files together."""
    from batuta.spec.kueue.files import read_quota_texts

    texts, problems = list[tuple[str, str]](), list[Problem]()
    for path in paths:
        if str(path) == STDIN:
            texts.append(("standard input", sys.stdin.read()))
            continue
        with collect_problems(problems):
            texts.append((str(path), read_text(path)))
    with collect_problems(problems):
        # The server checks again, with what it has; mistakes in the files need no server.
        read_quota_texts(texts)
    refuse(problems)
    return texts


def _parse_kind(word: str) -> str:
    plain = word.lower()
    found = _KINDS.get(plain) or _KINDS.get(plain.removesuffix("s")) or _KINDS.get(plain.removesuffix("es"))
    if found is None:
        known = list(dict.fromkeys(_KINDS.values()))
        raise InputError.of(f"unknown kind {word[:60]}", fix=did_you_mean(word, known))
    return found


def _print_changes(changed: QuotaChanged, output: Output, *, dry_run: bool = False) -> None:
    if output is Output.JSON:
        print_json(changed)
        return
    for one in changed.objects:
        name = f"{one.namespace}/{one.name}" if one.namespace else one.name
        typer.echo(f"{one.kind} {name} {one.change}{' (dry run)' if dry_run else ''}")
    print_notes(changed.notes)


def try_out(
    file: Annotated[Path, argument("FILE", "Cases: objects and steps, in YAML or JSON.")],
    quiet: Annotated[bool, flag("--quiet -q", "Only what differs from what the file expects.")] = False,
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
    from batuta.spec.quota_case_reader import parse_valid_cases

    cases, problems = parse_valid_cases(read_text(file), str(file))
    if problems and not cases:
        raise InputError(problems)
    results: list[dict[str, Any]] = []
    wrong = 0
    for case in cases:
        steps = list(run_case(case))
        wrong += any(one.differences for one in steps)
        if output is Output.JSON:
            results.append({"name": case.name, "steps": [_as_json(one.standing) for one in steps]})
            for number, one in enumerate(steps, start=1):
                for difference in one.differences:
                    print_stderr(f"{case.name}, step {number}: {difference}")
        elif not quiet or any(one.differences for one in steps):
            _print_case(case, steps)
    if output is Output.JSON:
        print_json(results)
    expecting = sum(any(step.expected for step in case.steps) for case in cases)
    if expecting:
        print_stderr(f"{expecting - wrong} of {expecting} cases went as expected")
    refuse(problems)
    if wrong:
        raise typer.Exit(1)


def _as_json(standing: QuotaStatus) -> dict[str, Any]:
    """Return the state after a step in the form that case files have."""
    return {
        "admitted": {name: dict(flavors) for name, flavors in standing.admitted.items()},
        "preempted": [
            {"workload": one.workload, "reason": one.reason}
            | ({"preemption": one.preemption} if one.preemption else {})
            | ({"by": one.by} if one.by else {})
            for one in standing.preempted
        ],
        "pending": {name: {"reason": one.reason, "message": one.message} for name, one in standing.pending.items()},
    }


def _print_case(case: QuotaCase, steps: list[StepResult]) -> None:
    print_rich(case.name, "bold")
    for note in case.notes:
        print_rich(f"    note: {note}", "dim")
    for number, one in enumerate(steps, start=1):
        print_rich(f"{number:>3} {_action_text(one.step.action)}")
        rows = _rows(one.standing)
        if rows:
            print_rich(_table(rows))
        for difference in one.differences:
            print_rich(_table([(styled("differs", style="bold red"), styled(difference))]))
    print_rich("")


def _table(rows: list[tuple[Text, ...]]) -> RenderableType:
    """Return indented columns; long text wraps within its column."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=9)
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 4))


def _rows(standing: QuotaStatus) -> list[tuple[Text, ...]]:
    """Return a row for each preempted, admitted and pending workload: state, name, flavors or reason."""
    shown = {
        ("preempted", "magenta"): [(one.workload, _preemption_text(one)) for one in standing.preempted],
        ("admitted", "green"): [
            (name, ", ".join(f"{what} in {where}" for what, where in flavors.items()))
            for name, flavors in standing.admitted.items()
        ],
        ("pending", "yellow"): [(name, f"{one.reason}: {one.message}") for name, one in standing.pending.items()],
    }
    return [
        (styled(state, style), styled(name, no_wrap=True), styled(rest))
        for (state, style), rows in shown.items()
        for name, rest in rows
    ]


def _preemption_text(one: Evicted) -> str:
    how = f"{one.reason} ({one.preemption})" if one.preemption else one.reason
    return f"{how} by {one.by}" if one.by else how


def _action_text(action: Action) -> str:
    from batuta.spec.quota_case import ChangeQuota, Delete, Finish, PatchWorkload, Submit

    match action:
        case Submit():
            pods = " + ".join(map(_pod_set_text, action.pod_sets))
            inactive = "" if action.active else ", not active"
            return f"submit {action.name} to {action.queue}: {pods}, priority {action.priority}{inactive}"
        case Finish():
            return f"{action.name} finishes"
        case Delete():
            return f"delete {action.name}"
        case PatchWorkload():
            active = None if action.active is None else str(action.active).lower()
            given = {"active": active, "priority": action.priority, "queue": action.queue}
            changes = ", ".join(f"{key} {value}" for key, value in given.items() if value is not None)
            return f"change {action.name}: {changes or 'nothing'}"
        case ChangeQuota():
            return f"{action.verb.removesuffix('Object')} {action.kind} {action.name}"


def _pod_set_text(one: PodSet) -> str:
    requests = ", ".join(
        f"{show_milli(amount, is_bytes=resource == 'memory')} {resource}" for resource, amount in one.requests
    )
    least = f" (at least {one.min_count})" if one.min_count is not None else ""
    return f"{one.count} × {requests or 'nothing'}{least}"


class StepResult(NamedTuple):
    """A step, the state after it, and how that differs from what the file expects."""

    step: Step
    standing: QuotaStatus
    differences: list[str]


def run_case(case: QuotaCase) -> Iterator[StepResult]:
    from batuta.quota.simulator import QuotaSimulator

    trial, over = QuotaSimulator(case.quota, case.nodes), set[str]()
    for step in case.steps:
        standing = _run_action(trial, step.action, over)
        lost = (one.workload for one in standing.preempted)
        yield StepResult(step, standing, step.expected.differences(standing.admitted, lost, standing.pending))


def _run_action(trial: QuotaSimulator, action: Action, over: set[str]) -> QuotaStatus:
    """Run an action and return the state after it. Nothing changes a workload in `over`: it has finished."""
    from batuta.quota.workload import PodSet
    from batuta.spec.quota_case import ChangeQuota, Delete, Finish, PatchWorkload, Submit

    match action:
        case Submit():
            over.discard(action.name)
            pod_sets = tuple(
                PodSet(one.requests, one.count, one.min_count, one.name, one.node_selector, one.tolerations)
                for one in action.pod_sets
            )
            return trial.submit(action.name, action.queue, pod_sets, action.priority, action.active, action.namespace)
        case Finish() | Delete() | PatchWorkload() if action.name in over:
            return trial.standing()
        case Finish() | Delete():
            over.add(action.name)
            return trial.finish(action.name)
        case PatchWorkload():
            return trial.patch(action.name, action.active, action.priority, action.queue)
        case ChangeQuota():
            return trial.change(action.quota)
