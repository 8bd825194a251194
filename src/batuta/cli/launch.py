"""`batuta launch` (and Voda's `create`): submit a task or a command, preview it, and follow it."""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import stat
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from batuta.apitypes.resources import Cpu, Gpus, Job, Share, Submitted
from batuta.cli.job_view import cpu_of
from batuta.cli.logs import follow_output, wait_for_end
from batuta.cli.options import (
    HomeOption,
    Output,
    OutputOption,
    YesOption,
    argument,
    command_line,
    connect,
    flag,
    option,
    selected_cluster,
)
from batuta.cli.output import confirm, is_interactive, print_json, print_notes, print_stderr
from batuta.client.connection import Connection
from batuta.client.errors import NoServerError
from batuta.spec.problem import InputError, Problem, collect_problems, refuse

if TYPE_CHECKING:
    from batuta.client.submission import Submission


_COMMAND = "batuta.command"
_STDIN_S = 0.2  # how long to wait for input from a pipe


class LaunchCommand(TyperCommand):
    """Keeps the words after `--` apart: a command would look like a task file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def launch(
    ctx: typer.Context,
    task: Annotated[
        str | None, argument("[TASK.yaml | - | -- COMMAND…]", "A task file (-: standard input), or a command.")
    ] = None,
    like: Annotated[
        str | None,
        option("Run what an earlier job ran, with its secrets; other options stand over it.", "JOB", complete="jobs"),
    ] = None,
    name: Annotated[str | None, option("Name of the job.", names="--name -n")] = None,
    gpus: Annotated[
        str | None,
        option(
            "GPUs for each node, as in H100:4, 2 or H100:0.5; 0 runs on CPU. "
            "Default: what the file says; 1 for a command."
        ),
    ] = None,
    num_nodes: Annotated[str | None, option("How many nodes; auto leaves it open.", "N")] = None,
    min_nodes: Annotated[int | None, option("It can run on as few.", "N")] = None,
    max_nodes: Annotated[int | None, option("It can use as many.", "N")] = None,
    restartable: Annotated[
        bool | None, flag("--restartable", "A restart loses nothing: resize it at any time.")
    ] = None,
    env: Annotated[
        list[str] | None, option("A variable; K alone takes yours. May be repeated.", "K=V", names="--env -e")
    ] = None,
    env_file: Annotated[list[Path] | None, option("A dotenv file of variables.", "FILE")] = None,
    secret: Annotated[list[str] | None, option("A variable that is never shown; K alone takes yours.", "K=V")] = None,
    workdir: Annotated[str | None, option("Where it runs; default for a command: here.", "DIR")] = None,
    image: Annotated[str | None, option("On a cluster: the image it runs in.", "IMAGE", names="--image-id")] = None,
    workdir_in_image: Annotated[str | None, option("On a cluster: where the image has workdir.", "DIR")] = None,
    queue: Annotated[str | None, option("The queue it waits in.", names="--queue -q", complete="queues")] = None,
    priority: Annotated[str | None, option("-1000 to 1000, or a priority class; higher goes first.", "P")] = None,
    dryrun: Annotated[bool, flag("--dryrun", "Only check it, and show what would be asked for.")] = False,
    detach: Annotated[bool, flag("--detach -d", "Return at once, instead of following its output.")] = False,
    yes: YesOption = False,
    wait: Annotated[bool, flag("--wait", "Wait for its end without its output; its exit code is ours.")] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Submit a task file or a command. Its output is followed until it ends; Ctrl-C detaches.

    The exit code is 0 when the job succeeded, 100 when it failed, 103 when it was cancelled.

    Examples:
      batuta launch train.yaml --env LR=0.1 --min-nodes 1 --max-nodes 8
      batuta launch -n hello --gpus 2 -- python hello.py
      batuta launch -n prepare --gpus 0 -- python prepare.py
      batuta launch train.yaml --dryrun
      batuta launch train.yaml -d -o json
      batuta launch --like 17 --env LR=0.01
      batuta --context prod launch train.yaml -d
    """
    from batuta.client.submission import Submission

    overrides = {
        "name": name,
        "gpus": gpus,
        "num_nodes": _count(num_nodes),
        "min_nodes": min_nodes,
        "max_nodes": max_nodes,
        "restartable": restartable,
        "queue": queue,
        "priority": priority,
        "workdir": str(Path(workdir).expanduser().absolute()) if workdir is not None else None,
    } | _variables(env or (), env_file or (), secret or ())
    if (image or workdir_in_image) and selected_cluster() is None:
        options = "--image-id and --workdir-in-image"
        raise InputError.of(f"{options} are for a Kubernetes cluster", fix="batuta --context NAME launch …")
    overrides |= {"image_id": image, "workdir_in_image": workdir_in_image}
    behind = ctx.meta.get(_COMMAND)
    if task == "-" and behind is None and like is None:
        submission = _from_stdin(overrides)
    else:
        what = _task_or_command(task, behind, like)
        _refuse_stdin()
        submission = Submission.of(*what, overrides, like=like)
    with connect(home) as client:
        if like is not None:
            submission = replace(submission, like=client.job(like).id)
        if dryrun:
            _preview(client, submission, output)
            return
        if not yes and not detach and output is Output.TABLE and is_interactive():
            confirm(f"Launch {summary_of(client.send_submission(submission, dry_run=True))}?", default=True)
        raise typer.Exit(_submit(client, submission, output, follow=not detach, wait=wait))


def create(
    file: Annotated[Path, option("The task file.", "FILE", names="--file -f")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """The same as batuta launch -d FILE.

    Example: batuta create -f train.yaml
    """
    from batuta.client.submission import Submission

    with connect(home) as client:
        raise typer.Exit(_submit(client, Submission.of(file), output, follow=False, wait=False))


def _task_or_command(
    task: str | None, command_line: Sequence[str] | None, like: str | None
) -> tuple[Path | None, Sequence[str] | None]:
    """Return the task file or the command. A text with spaces that is no file is a command, as in sky."""
    if like is not None:
        if task is not None or command_line is not None:
            raise InputError.of("--like, and a task file or a command", fix="one of both")
        if selected_cluster() is not None:
            raise InputError.of(
                "--like is for a server: a cluster keeps its jobs as objects",
                fix=f"kubectl get unifiedjob {like} -o yaml, to be created with another name",
            )
        return None, None
    if task is not None and command_line is not None:
        raise InputError.of("a task file and a command", fix="one of both: TASK.yaml, or -- COMMAND")
    if command_line is not None and not command_line:
        raise InputError.of("there is nothing behind --", fix="batuta launch -- python train.py")
    if task is not None and " " in task.strip() and not Path(task).exists():
        return None, [task]
    if task is None and command_line is None:
        raise InputError.of("what shall run?", fix="batuta launch TASK.yaml, or batuta launch -- COMMAND")
    return (Path(task) if task is not None else None), command_line


def _from_stdin(overrides: dict[str, Any]) -> Submission:
    from batuta.client.submission import Submission

    text = "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise InputError.of("standard input is empty", fix="a task file: batuta launch - < task.yaml")
    given = {name: value for name, value in overrides.items() if value not in (None, {})}
    here = str(Path.cwd())
    return Submission(text, here, given, file="standard input", file_dir=here)


def _refuse_stdin() -> None:
    """Refuse input from a pipe: a job does not read it, and it would be lost."""
    try:
        mode = os.fstat(0).st_mode
        if stat.S_ISREG(mode):
            waiting = os.fstat(0).st_size - os.lseek(0, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(mode):
            select.select([0], [], [], _STDIN_S)
            count = array.array("i", [0])
            fcntl.ioctl(0, termios.FIONREAD, count)
            waiting = count[0]
        else:
            return
    except OSError:
        return  # it is closed
    if waiting > 0:
        raise InputError.of(
            "standard input is not passed to a job",
            fix="let the job read a file; batuta launch - reads a task file; < /dev/null for no input",
        )


def _count(text: str | None) -> int | str | None:
    """Return a number as int; the task reader judges other texts."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 9 else text


def _variables(env: Sequence[str], env_files: Sequence[Path], secret: Sequence[str]) -> dict[str, Any]:
    if not env and not env_files and not secret:
        return {}
    from batuta.spec.task_env import parse_env_options, read_env

    problems: list[Problem] = []
    values: dict[str, Any] = {}
    with collect_problems(problems):
        values["env"] = read_env(env, env_files, os.environ)
    with collect_problems(problems):
        values["secret"] = parse_env_options(secret, os.environ, "--secret")
    refuse(problems)
    return values


def _preview(client: Connection, submission: Submission, output: Output) -> None:
    manifest = client.manifest(submission)
    if manifest is not None:
        print_manifest(manifest, client.send_submission(submission, dry_run=True).notes, output)
        return
    try:
        found, checked = client.send_submission(submission, dry_run=True), True
    except NoServerError:
        found, checked = preview_offline(submission), False
    print_preview(found, submission, output, checked=checked)


def _submit(client: Connection, submission: Submission, output: Output, *, follow: bool, wait: bool) -> int:
    submitted = client.send_submission(submission)
    job = submitted.job
    if output is Output.JSON:
        code = wait_for_end(client, job) if wait else 0
        print_json({"job": client.job(job) if wait else job, "notes": list(submitted.notes)})
        return code
    print_notes(submitted.notes)
    if job.size_choice is not None:
        print_stderr(f"size: {job.size_choice.sentence}")
    (print_stderr if follow or wait else typer.echo)(f"job {job.label} is submitted")
    if wait:
        return wait_for_end(client, job)
    if follow:
        return follow_output(client, job)
    print_stderr(
        f"{command_line('logs', job.id)} follows its output, {command_line('explain', job.id)} tells why it waits"
    )
    return 0


def preview_offline(submission: Submission) -> Submitted:
    """Read the task as the server does. Whether it fits the cluster is unknown."""
    from batuta.spec.task import parse_task
    from batuta.spec.task_env import Overrides
    from batuta.spec.task_job import task_to_job
    from batuta.spec.task_paths import PathRules

    task = submission.task
    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
    beside = Path(submission.file_dir) if submission.file_dir else None
    rules = PathRules(Path(submission.base_dir), Path.home(), beside=beside)
    parsed = parse_task(text, submission.file or "command", Overrides(**submission.overrides), rules)
    job = task_to_job(parsed, "dryrun", time.time())
    share = None if job.share is None else Share(job.share.memory_mib, job.share.compute_percent)
    least, most = (0, 0) if job.cpu_only else (job.min, job.max)
    kinds = " or ".join(name for name, _ in job.gpu_types) or "any"
    cpu = Cpu(job.size, 0, job.cpus_milli_per_gpu / 1000, job.memory_mib_per_gpu) if job.cpu_only else None
    gpus = Gpus(0, job.gpus, least, most, job.gpus_per_replica, kinds, share)
    name = "" if job.name == "dryrun" else job.name
    seen = Job("", name, "", job.queue, job.kind.value, job.priority, "PENDING", gpus=gpus, cpu=cpu)
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
    if job.cpu is not None:
        size = f"{cpu_of(job)}, no GPU"
    if gpus.share is not None:
        size = f"a part of one {kind}GPU"
    span = f" (elastic, {gpus.min // each}–{gpus.max // each} nodes)" if gpus.min != gpus.max else ""
    return f"{job.name or 'a job'}: {size}{span}, queue {job.queue}"


def print_preview(found: Submitted, submission: Submission, output: Output, *, checked: bool) -> None:
    """Print what the job would request, without the values of secrets."""
    if output is Output.JSON:
        print_json({"job": found.job, "notes": list(found.notes), "fits": True if checked else None})
        return
    typer.echo(summary_of(found))
    for name, value in _preview_details(found, submission):
        typer.echo(f"  {name:<9} {value}")
    for note in found.notes:
        typer.echo(f"  note      {note}")
    if checked:
        print_stderr("it fits this cluster; nothing was submitted")
    else:
        print_stderr("no server is running, so whether it fits was not checked; nothing was submitted")


def print_manifest(manifest: Mapping[str, Any], notes: Sequence[str], output: Output) -> None:
    """Print the object that would be created on a cluster, as kubectl takes it."""
    import yaml

    if output is Output.JSON:
        print_json(dict(manifest))
    else:
        typer.echo(yaml.safe_dump(dict(manifest), sort_keys=False, allow_unicode=True), nl=False)
    print_notes(notes)
    print_stderr("the API server accepts it; nothing was submitted")


def _preview_details(found: Submitted, submission: Submission) -> list[tuple[str, str]]:
    job = found.job
    variables = ", ".join(f"{name}={value}" for name, value in submission.overrides.get("env", {}).items())
    secrets = ", ".join(submission.overrides.get("secret", {}))
    details = [
        ("kind", job.kind),
        ("priority", str(job.priority)),
        ("size", job.size_choice.sentence if job.size_choice is not None else ""),
        ("runs", f"what job {submission.like} ran" if submission.like else _first_line(submission.task)),
        ("env", variables),
        ("secrets", f"{secrets} (values hidden)" if secrets else ""),
    ]
    return [(name, value) for name, value in details if value]


def _first_line(task: Any) -> str:
    """Return the first line of a command; nothing for a task file."""
    if isinstance(task, str):
        return ""
    lines = str(task.get("run", "")).strip().splitlines()
    return "" if not lines else lines[0] + (" …" if len(lines) > 1 else "")
