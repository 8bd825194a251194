"""`batuta queues apply`, `delete` and `export`: quota from files, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, connect

if TYPE_CHECKING:
    from batuta.client.quota_calls import QuotaChanged

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
"""What people call the kinds: as kubectl has it, singular or plural, in any case."""


def apply(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files of quota; - for standard input.")
    ] = None,
    file_options: Annotated[
        list[Path] | None, typer.Option("--file", "-f", metavar="FILE", help="The same, as kubectl has it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and say what would change; change nothing.")
    ] = False,
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
    from batuta.spec.problem import InputError

    paths = [*(files or ()), *(file_options or ())]
    if not paths:
        raise InputError.of("which file?", fix="batuta queues apply -f FILE")
    texts = _read(paths)
    with connect(home) as client:
        _show(client.apply_quota(texts, dry_run=dry_run), output, dry_run=dry_run)


def delete(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="ClusterQueue (cq), LocalQueue (lq), Cohort, …")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the object.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of a LocalQueue, if it has one.", metavar="NS")
    ] = "",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Remove an object of quota. A queue in which jobs run starts nothing more, and goes with the last one.

    Example: batuta queues delete cq team-a
    """
    with connect(home) as client:
        _show(client.delete_quota_object(_kind(kind), name, namespace), output)


def export(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Print all quota that holds now as YAML, to keep it or to apply it elsewhere.

    Example: batuta queues export > quota.yaml
    """
    from batuta.cli.terminal import print_json, say

    with connect(home) as client:
        objects = client.quota_objects()
    if output is Output.JSON:
        print_json(objects)
    elif objects:
        import yaml

        typer.echo(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True), nl=False)
    else:
        say("there is no quota yet: batuta queues apply -f FILE")


def _read(paths: list[Path]) -> list[tuple[str, str]]:
    """The texts of all files, or everything that is wrong with them."""
    from batuta.spec.kueue.files import read_quota_texts
    from batuta.spec.problem import InputError, Problem
    from batuta.spec.text_file import read_text

    texts, problems = list[tuple[str, str]](), list[Problem]()
    for path in paths:
        if str(path) == STDIN:
            texts.append(("standard input", sys.stdin.read()))
            continue
        try:
            texts.append((str(path), read_text(path)))
        except InputError as error:
            problems += error.problems
    try:
        # The server checks again, with what it has; mistakes in the files need no server.
        read_quota_texts(texts)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return texts


def _kind(word: str) -> str:
    from batuta.spec.problem import InputError, did_you_mean

    plain = word.lower()
    found = _KINDS.get(plain) or _KINDS.get(plain.removesuffix("s")) or _KINDS.get(plain.removesuffix("es"))
    if found is None:
        known = list(dict.fromkeys(_KINDS.values()))
        raise InputError.of(f"unknown kind {word[:60]}", fix=did_you_mean(word, known))
    return found


def _show(changed: QuotaChanged, output: Output, *, dry_run: bool = False) -> None:
    from batuta.cli.terminal import print_json, say

    if output is Output.JSON:
        print_json(changed)
        return
    for one in changed.objects:
        name = f"{one.namespace}/{one.name}" if one.namespace else one.name
        typer.echo(f"{one.kind} {name} {one.change}{' (dry run)' if dry_run else ''}")
    for note in changed.notes:
        say(f"note: {note}")
