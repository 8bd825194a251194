"""Following a job to its end: why it waits, then its output, then how it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from batuta.cli.cluster_options import command
from batuta.cli.job_view import exit_code_of, why
from batuta.cli.terminal import say, show_seconds, spinner

if TYPE_CHECKING:
    from batuta.client.answers import Job
    from batuta.client.connection import Connection


def follow_output(
    client: Connection, job: Job, rank: int = 0, tail: int | None = None, since_s: float | None = None
) -> int:
    """Prints the output until the job ends; its exit code. Ctrl-C detaches, and the job goes on."""
    try:
        _wait_for_start(client, job)
        write_output(client.log_bytes(job, rank=rank, tail=tail, since_s=since_s, follow=True))
        job = client.wait(job)
    except KeyboardInterrupt:
        say_detached(job)
        return 0
    say_end(job)
    return exit_code_of(job)


def wait_for_end(client: Connection, job: Job) -> int:
    """Waits without output, with a bar on a terminal; the job's exit code."""
    try:
        job = _with_bar(client, job) if sys.stderr.isatty() else client.wait(job)
    except KeyboardInterrupt:
        say_detached(job)
        return 0
    say_end(job)
    return exit_code_of(job)


def write_output(pieces: Iterable[bytes]) -> bool:
    """The bytes as they were written: colours and bars stay so. Whether there were any."""
    out = sys.stdout.buffer if hasattr(sys.stdout, "buffer") else None
    found = False
    for piece in pieces:
        found = found or bool(piece)
        if out is not None:
            out.write(piece)
            out.flush()
        else:
            sys.stdout.write(piece.decode("utf-8", "replace"))
    return found


def say_detached(job: Job) -> None:
    say(
        f"\ndetached; job {job.label} goes on.\n"
        f"  {command('logs', job.id)}     to see its output again\n"
        f"  {command('cancel', job.id)}   to end it"
    )


def say_end(job: Job) -> None:
    ran = f" after {show_seconds(job.duration_s)}" if job.duration_s is not None else ""
    reason = f": {why(job)}" if why(job) else ""
    say(f"job {job.label} {job.state}{ran}{reason}")


def _wait_for_start(client: Connection, job: Job) -> None:
    """Until there may be output. On a terminal one sees why it waits."""

    def begun(now: Job) -> bool:
        return now.is_over or now.started_s is not None or now.state not in ("PENDING", "PREEMPTED")

    with spinner(f"job {job.label} waits") as status:
        client.wait_until(job, begun, tell=lambda now: status.update(_waiting(now)))


def _waiting(job: Job) -> str:
    from rich.markup import escape

    reason = f": {why(job)}" if why(job) else ""
    return escape(f"job {job.label} is {job.state}{reason}")


def _with_bar(client: Connection, job: Job) -> Job:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from batuta.cli.terminal import console

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        shown = bar.add_task(f"{job.label} {job.state}", total=None)

        def tell(now: Job) -> None:
            fraction = now.progress.fraction if now.progress is not None else None
            total = None if fraction is None else 1.0
            bar.update(shown, description=f"{now.label} {now.state}", completed=fraction or 0.0, total=total)

        return client.wait(job, tell=tell)
