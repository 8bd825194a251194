"""Jobs for people: the columns of `queue` and `history`, and one job in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batuta.cli.table import Column, print_table
from batuta.cli.terminal import (
    NOTHING,
    show,
    show_ago,
    show_moment,
    show_seconds,
    state_text,
)

if TYPE_CHECKING:
    from rich.text import Text

    from batuta.client.answers import Job

    Row = tuple[str | Text, ...]

EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 100, "FAILED_SETUP": 100, "CANCELLED": 103}
NOT_FINISHED, NOT_FOUND = 101, 102
QUEUE_COLUMNS = (
    Column("ID", right=True),
    Column("NAME", least=10),
    Column("USER", drop=5, least=8),
    Column("QUEUE", drop=4, least=8),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("PROGRESS", right=True),
    Column("ETA", right=True, drop=1),
    Column("SUBMITTED", right=True, drop=3),
    Column("DURATION", right=True, drop=2),
    Column("RESTARTS", right=True, drop=6),
    Column("REASON", least=30),
)
HISTORY_COLUMNS = (
    Column("ID", right=True),
    Column("NAME", least=10),
    Column("USER", drop=4, least=8),
    Column("QUEUE", drop=5, least=8),
    Column("STATE"),
    Column("GPUS", right=True, drop=2),
    Column("WAITED", right=True),
    Column("DURATION", right=True),
    Column("ENDED", right=True, drop=1),
    Column("RESTARTS", right=True, drop=3),
    Column("DETAIL", least=26),
)


def exit_code_of(job: Job) -> int:
    """The exit code that tells how a job stands."""
    return EXIT_CODES.get(job.state, NOT_FINISHED)


def print_queue(jobs: Sequence[Job], empty: str) -> None:
    print_table(*queue_table(jobs), empty)


def print_history(jobs: Sequence[Job], empty: str) -> None:
    print_table(*_named_once(HISTORY_COLUMNS, [_history_row(job) for job in jobs], jobs), empty)


def queue_table(jobs: Sequence[Job]) -> tuple[Sequence[Column], list[Row]]:
    """The columns of `queue` and a row for each job."""
    return _named_once(QUEUE_COLUMNS, [queue_row(job) for job in jobs], jobs)


def _named_once(
    columns: Sequence[Column], rows: list[Row], jobs: Sequence[Job]
) -> tuple[Sequence[Column], list[Row]]:
    """Where all ids say the name too, as on a cluster, one column tells both."""
    if not jobs or not all(job.is_named_by_id and "/" in job.id for job in jobs):
        return columns, rows
    return (Column("JOB", least=24), *columns[2:]), [(row[0], *row[2:]) for row in rows]


def queue_row(job: Job) -> Row:
    return (
        job.id,
        job.name or NOTHING,
        job.user or NOTHING,
        job.queue,
        _state(job),
        gpus_of(job),
        progress_of(job),
        NOTHING if job.is_over else show_seconds(job.eta_s),
        show_ago(job.submitted_s),
        show_seconds(job.duration_s),
        str(job.restarts),
        why(job),
    )


def _history_row(job: Job) -> Row:
    return (
        job.id,
        job.name or NOTHING,
        job.user or NOTHING,
        job.queue,
        _state(job),
        f"{job.gpus.wanted}",
        show_seconds(job.waited_s),
        show_seconds(job.duration_s),
        show_ago(job.ended_s),
        str(job.restarts),
        why(job),
    )


def gpus_of(job: Job) -> str:
    """`2/4 (1–8)`: what it has, what it asked for, its range when it is elastic."""
    gpus = job.gpus
    span = f" ({gpus.min}–{gpus.max})" if gpus.min != gpus.max else ""
    return f"{gpus.wanted}{span}" if job.is_over else f"{gpus.now}/{gpus.wanted}{span}"


def progress_of(job: Job) -> str:
    progress = job.progress
    if progress is None:
        return NOTHING
    if progress.fraction is not None:
        return f"{100 * progress.fraction:.0f}%"
    if progress.step is not None:
        return f"step {progress.step:,}"
    return f"epoch {progress.epoch:g}" if progress.epoch is not None else NOTHING


def why(job: Job) -> str:
    """One line on why it is as it is."""
    if not job.is_over:
        return job.reason.sentence if job.reason is not None else ""
    if job.detail or job.exit_code in (None, 0):
        return job.detail
    return f"exit code {job.exit_code}"


def _state(job: Job) -> Text:
    """A wish that is not fulfilled yet is part of the state."""
    text = state_text(job.state)
    if not job.is_over and job.wish in ("park", "cancel"):
        wished = "parked" if job.wish == "park" else "cancelling"
        text.append(f" ({wished})", style="dim")
    return text


def print_job(job: Job) -> None:
    """Everything about one job."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(job):
        if value not in ("", NOTHING):
            table.add_row(name, value if isinstance(value, Text) else Text(value))
    show(table)


def _facts(job: Job) -> list[tuple[str, str | Text]]:
    kind = f" of type {job.gpus.type}" if job.gpus.type else ""
    each = f", {job.gpus.per_node} per node" if job.gpus.per_node != 1 else ""
    places = ", ".join(
        f"{place.node}: {', '.join(map(str, place.gpus))}" if place.gpus else place.node
        for place in job.placement
    )
    times = [
        f"submitted {show_moment(job.submitted_s)}",
        *([f"started {show_moment(job.started_s)}"] if job.started_s is not None else []),
        *([f"ended {show_moment(job.ended_s)}"] if job.ended_s is not None else []),
    ]
    return [
        ("job", job.label),
        ("state", _state(job)),
        ("why", why(job)),
        ("GPUs", f"{gpus_of(job)}{kind}{each}"),
        ("on", places),
        ("progress", _full_progress(job)),
        ("done in", NOTHING if job.is_over else show_seconds(job.eta_s)),
        ("times", ", ".join(times)),
        ("waited", show_seconds(job.waited_s)),
        ("ran", show_seconds(job.duration_s)),
        ("restarts", str(job.restarts) if job.restarts else ""),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("user", job.user),
        ("queue", f"{job.queue}, priority {job.priority}"),
        ("kind", job.kind),
    ]


def _full_progress(job: Job) -> str:
    progress = job.progress
    if progress is None:
        return ""
    total = f" of {progress.total_steps:,}" if progress.total_steps is not None else ""
    parts = [
        f"{100 * progress.fraction:.1f}%" if progress.fraction is not None else "",
        f"step {progress.step:,}{total}" if progress.step is not None else "",
        f"epoch {progress.epoch:g}" if progress.epoch is not None else "",
        f"loss {progress.loss:.4g}" if progress.loss is not None else "",
        f"{progress.samples_per_s:,.4g} samples/s" if progress.samples_per_s is not None else "",
        f"{progress.step_s:.3g} s per step" if progress.step_s is not None else "",
    ]
    return ", ".join(part for part in parts if part)
