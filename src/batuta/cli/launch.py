"""`batuta launch` (and Voda's `create`): submit a task or a command, and follow it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from batuta.cli.cluster_options import chosen_cluster, command
from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, YesOption, connect

if TYPE_CHECKING:
    from batuta.client.connection import Connection
    from batuta.client.submission import Submission

_COMMAND = "batuta.command"


class LaunchCommand(TyperCommand):
    """Keeps apart what stands behind `--`: without it, a command and a task file would look alike."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def launch(
    ctx: typer.Context,
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK.yaml | -- COMMAND…]", help="A task file, or a command.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="GPUs for each node, as in H100:4, 2 or H100:0.5.")
    ] = None,
    num_nodes: Annotated[
        str | None, typer.Option("--num-nodes", help="How many nodes; auto leaves it open.", metavar="N")
    ] = None,
    min_nodes: Annotated[
        int | None, typer.Option("--min-nodes", help="It can run on as few.", metavar="N")
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option("--max-nodes", help="It can use as many.", metavar="N")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K=V", help="A variable; K alone takes yours. May be repeated."),
    ] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option("--env-file", metavar="FILE", help="A dotenv file of variables.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="K=V", help="A variable that is never shown; K alone takes yours."),
    ] = None,
    workdir: Annotated[
        str | None,
        typer.Option("--workdir", metavar="DIR", help="Where it runs; default for a command: here."),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image-id", metavar="IMAGE", help="On a cluster: the image it runs in.")
    ] = None,
    workdir_in_image: Annotated[
        str | None,
        typer.Option("--workdir-in-image", metavar="DIR", help="On a cluster: where the image has workdir."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="The queue it waits in.")] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            "--priority", help="-1000 to 1000, or a priority class; higher goes first.", metavar="P"
        ),
    ] = None,
    dryrun: Annotated[
        bool, typer.Option("--dryrun", help="Only check it, and show what would be asked for.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return at once, instead of following its output.")
    ] = False,
    yes: YesOption = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end without its output; its exit code is ours.")
    ] = False,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Submit a task file or a command. Its output is followed until it ends; Ctrl-C detaches.

    The exit code is 0 when the job succeeded, 100 when it failed, 103 when it was cancelled.

    Examples:

      batuta launch train.yaml --env LR=0.1 --min-nodes 1 --max-nodes 8

      batuta launch -n hello --gpus 2 -- python hello.py

      batuta launch train.yaml --dryrun

      batuta launch train.yaml -d -o json

      batuta --context prod launch train.yaml -d
    """
    from batuta.client.submission import Submission

    overrides = {
        "name": name,
        "gpus": gpus,
        "num_nodes": _count(num_nodes),
        "min_nodes": min_nodes,
        "max_nodes": max_nodes,
        "queue": queue,
        "priority": priority,
        "workdir": str(Path(workdir).expanduser().absolute()) if workdir is not None else None,
    } | _variables(env or (), env_file or (), secret or ())
    overrides |= _for_cluster(image, workdir_in_image)
    submission = Submission.of(*_what(task, ctx.meta.get(_COMMAND)), overrides)
    with connect(home) as client:
        if dryrun:
            _preview(client, submission, output)
            return
        if not yes and not detach and output is Output.TABLE:
            _ask(client, submission)
        raise typer.Exit(_submit(client, submission, output, follow=not detach, wait=wait))


def create(
    file: Annotated[Path, typer.Option("--file", "-f", help="The task file.", metavar="FILE")],
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """The same as batuta launch -d FILE.

    Example: batuta create -f train.yaml
    """
    from batuta.client.submission import Submission

    with connect(home) as client:
        raise typer.Exit(_submit(client, Submission.of(file), output, follow=False, wait=False))


def _what(task: str | None, command: Sequence[str] | None) -> tuple[Path | None, Sequence[str] | None]:
    """The task file, or the command. A text with spaces that is no file is a command, as it is for sky."""
    from batuta.spec.problem import InputError

    if task is not None and command is not None:
        raise InputError.of("a task file and a command", fix="one of both: TASK.yaml, or -- COMMAND")
    if command is not None and not command:
        raise InputError.of("there is nothing behind --", fix="batuta launch -- python train.py")
    if task is not None and " " in task.strip() and not Path(task).exists():
        return None, [task]
    if task is None and command is None:
        raise InputError.of("what shall run?", fix="batuta launch TASK.yaml, or batuta launch -- COMMAND")
    return (Path(task) if task is not None else None), command


def _count(text: str | None) -> int | str | None:
    """A number as such; whoever reads the task says what else may stand there."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 9 else text


def _variables(env: Sequence[str], env_files: Sequence[Path], secret: Sequence[str]) -> dict[str, Any]:
    if not env and not env_files and not secret:
        return {}
    import os

    from batuta.spec.overrides import read_env
    from batuta.spec.problem import InputError, Problem
    from batuta.spec.task_env import parse_env_options

    problems: list[Problem] = []
    values: dict[str, Any] = {}
    try:
        values["env"] = read_env(env, env_files, os.environ)
    except InputError as error:
        problems += error.problems
    try:
        values["secret"] = parse_env_options(secret, os.environ, "--secret")
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return values


def _for_cluster(image: str | None, workdir_in_image: str | None) -> dict[str, Any]:
    from batuta.spec.problem import InputError

    if (image or workdir_in_image) and chosen_cluster() is None:
        raise InputError.of(
            "--image-id and --workdir-in-image are for a Kubernetes cluster",
            fix="batuta --context NAME launch …",
        )
    return {"image_id": image, "workdir_in_image": workdir_in_image}


def _preview(client: Connection, submission: Submission, output: Output) -> None:
    from batuta.cli.launch_preview import preview_here, print_manifest, print_preview
    from batuta.client.errors import NoServerError

    manifest = client.manifest(submission)
    if manifest is not None:
        print_manifest(manifest, client.send_submission(submission, dry_run=True).notes, output)
        return
    try:
        found, checked = client.send_submission(submission, dry_run=True), True
    except NoServerError:
        found, checked = preview_here(submission), False
    print_preview(found, submission, output, checked=checked)


def _ask(client: Connection, submission: Submission) -> None:
    """Shows on a terminal what will be asked for, and asks."""
    from batuta.cli.launch_preview import summary_of
    from batuta.cli.terminal import confirm, is_interactive

    if is_interactive():
        confirm(f"Launch {summary_of(client.send_submission(submission, dry_run=True))}?", default=True)


def _submit(client: Connection, submission: Submission, output: Output, *, follow: bool, wait: bool) -> int:
    from batuta.cli.follow import follow_output, wait_for_end
    from batuta.cli.terminal import print_json, say

    submitted = client.send_submission(submission)
    job = submitted.job
    if output is Output.JSON:
        code = wait_for_end(client, job) if wait else 0
        print_json({"job": client.job(job) if wait else job, "notes": list(submitted.notes)})
        return code
    for note in submitted.notes:
        say(f"note: {note}")
    if job.size_choice is not None:
        say(f"size: {job.size_choice.sentence}")
    (say if follow or wait else typer.echo)(f"job {job.label} is submitted")
    if wait:
        return wait_for_end(client, job)
    if follow:
        return follow_output(client, job)
    say(f"{command('logs', job.id)} follows its output, {command('explain', job.id)} tells why it waits")
    return 0
