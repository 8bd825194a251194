"""What a submit would ask for, with a server or without one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batuta.cli.options import Output

if TYPE_CHECKING:
    from batuta.client.answers import Submitted
    from batuta.client.submission import Submission


def preview_here(submission: Submission) -> Submitted:
    """Reads the task as the server would. Whether it fits a cluster is not known here."""
    from batuta.client.answers import GpuRequest, Job, Share, Submitted
    from batuta.spec.overrides import Overrides
    from batuta.spec.task import parse_task
    from batuta.spec.task_job import task_to_job
    from batuta.spec.task_paths import PathRules

    task = submission.task
    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
    rules = PathRules(Path(submission.base_dir), Path.home())
    parsed = parse_task(text, submission.file or "command", Overrides(**submission.overrides), rules)
    job = task_to_job(parsed, "dryrun", time.time())
    share = Share(job.share.memory_mib, job.share.compute_percent) if job.share is not None else None
    request = GpuRequest(
        wanted=job.size,
        min=job.min,
        max=job.max,
        per_node=job.gpus_per_replica,
        type=" or ".join(name for name, _ in job.gpu_types) or "any",
        share=share,
    )
    seen = Job(
        id="",
        name=job.name if job.name != "dryrun" else "",
        queue=job.queue,
        kind=job.kind.value,
        priority=job.priority,
        state="PENDING",
        gpus=request,
    )
    notes = ("num_nodes: auto: the server chooses the size",) if parsed.auto_nodes else ()
    return Submitted(seen, (*parsed.notes, *notes))


def summary_of(found: Submitted) -> str:
    """`resnet: 4 nodes with 8 H100 GPUs each (elastic, 1–8 nodes), queue team-a`."""
    job, gpus = found.job, found.job.gpus
    each = max(1, gpus.per_node)
    nodes = gpus.wanted // each
    kind = f"{gpus.type} " if gpus.type not in (None, "", "any") else ""
    node = f"{each} {kind}GPU{'' if each == 1 else 's'}"
    size = f"one node with {node}" if nodes == 1 else f"{nodes} nodes with {node} each"
    if gpus.share is not None:
        size = f"a part of one {kind}GPU"
    span = f" (elastic, {gpus.min // each}–{gpus.max // each} nodes)" if gpus.min != gpus.max else ""
    return f"{job.name or 'a job'}: {size}{span}, queue {job.queue}"


def print_preview(found: Submitted, submission: Submission, output: Output, *, checked: bool) -> None:
    """What would be asked for. Values of secrets are not shown."""
    import typer

    from batuta.cli.terminal import print_json, say
    from batuta.client.decoding import encode

    if output is Output.JSON:
        print_json({"job": encode(found.job), "notes": list(found.notes), "fits": True if checked else None})
        return
    typer.echo(summary_of(found))
    for name, value in _details(found, submission):
        typer.echo(f"  {name:<9} {value}")
    for note in found.notes:
        typer.echo(f"  note      {note}")
    if checked:
        say("it fits this cluster; nothing was submitted")
    else:
        say("no server is running, so whether it fits was not checked; nothing was submitted")


def print_manifest(manifest: Mapping[str, Any], notes: Sequence[str], output: Output) -> None:
    """The object that would be written to a cluster, as kubectl takes it."""
    import typer
    import yaml

    from batuta.cli.terminal import print_json, say

    if output is Output.JSON:
        print_json(dict(manifest))
    else:
        typer.echo(yaml.safe_dump(dict(manifest), sort_keys=False, allow_unicode=True), nl=False)
    for note in notes:
        say(f"note: {note}")
    say("the API server accepts it; nothing was submitted")


def _details(found: Submitted, submission: Submission) -> list[tuple[str, str]]:
    job = found.job
    variables = ", ".join(f"{name}={value}" for name, value in submission.overrides.get("env", {}).items())
    secrets = ", ".join(submission.overrides.get("secret", {}))
    details = [
        ("kind", job.kind),
        ("priority", str(job.priority)),
        ("size", job.size_choice.sentence if job.size_choice is not None else ""),
        ("runs", _first_line(submission.task)),
        ("env", variables),
        ("secrets", f"{secrets} (values hidden)" if secrets else ""),
    ]
    return [(name, value) for name, value in details if value]


def _first_line(task: Any) -> str:
    """A command as it is; what a task file runs is in the file."""
    if isinstance(task, str):
        return ""
    lines = str(task.get("run", "")).strip().splitlines()
    return "" if not lines else lines[0] + (" …" if len(lines) > 1 else "")
