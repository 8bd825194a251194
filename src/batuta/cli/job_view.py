"""Jobs as tables: the columns of `queue` and `history`, all facts about one job, and exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batuta.apitypes.resources import Job
from batuta.cli import output as out
from batuta.cli.output import DASH, Column

if TYPE_CHECKING:
    from rich.text import Text


EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 100, "FAILED_SETUP": 100, "CANCELLED": 103}
NOT_FINISHED, NOT_FOUND = 101, 102


def exit_code_of(job: Job) -> int:
    return EXIT_CODES.get(job.state, NOT_FINISHED)


def gpus_of(job: Job) -> str:
    """Return `2/4 (1–8)`: GPUs it has, GPUs requested, the elastic range; `–` for a CPU-only job."""
    gpus = job.gpus
    if job.cpu is not None:
        return DASH
    span = f" ({gpus.min}–{gpus.max})" if gpus.min != gpus.max else ""
    return f"{gpus.wanted}{span}" if job.is_over else f"{gpus.now}/{gpus.wanted}{span}"


def cpu_of(job: Job) -> str:
    """Return `2 nodes with 4 CPUs and 8 GiB each` for a CPU-only job; empty for one with GPUs."""
    cpu = job.cpu
    if cpu is None:
        return ""
    needs = [f"{cpu.cpus:g} CPU{'' if cpu.cpus == 1 else 's'}" if cpu.cpus else ""]
    needs.append(f"{cpu.memory_mib / 1024:g} GiB" if cpu.memory_mib else "")
    each = " and ".join(filter(None, needs))
    if cpu.replicas == 1:
        return f"one node with {each}" if each else "one node"
    return f"{cpu.replicas} nodes with {each} each" if each else f"{cpu.replicas} nodes"


def progress_of(job: Job) -> str:
    progress = job.progress
    if progress is None:
        return DASH
    if progress.fraction is not None:
        return f"{100 * progress.fraction:.0f}%"
    if progress.step is not None:
        return f"step {progress.step:,}"
    return f"epoch {progress.epoch:g}" if progress.epoch is not None else DASH


def reason_text(job: Job) -> str:
    """Return one line on why the job waits, has its size, or ended."""
    if not job.is_over:
        return job.reason.sentence if job.reason is not None else ""
    if job.detail or job.exit_code in (None, 0):
        return job.detail
    return f"exit code {job.exit_code}"


def state_of(job: Job) -> Text:
    """Return the state, with a requested one that is not reached yet."""
    text = out.state_text(job.state)
    if not job.is_over and job.wish in ("park", "cancel"):
        requested = "parked" if job.wish == "park" else "cancelling"
        text.append(f" ({requested})", style="dim")
    return text


QUEUE_COLUMNS: tuple[Column[Job], ...] = (
    Column("ID", lambda job: job.id, right=True),
    Column("NAME", lambda job: job.name or DASH, least=10),
    Column("USER", lambda job: job.user or DASH, drop=5, least=8),
    Column("QUEUE", lambda job: job.queue, drop=4, least=8),
    Column("STATE", state_of),
    Column("GPUS", gpus_of, right=True),
    Column("PROGRESS", progress_of, right=True),
    Column("ETA", lambda job: DASH if job.is_over else out.format_seconds(job.eta_s), right=True, drop=1),
    Column("SUBMITTED", lambda job: out.format_age(job.submitted_s), right=True, drop=3),
    Column("DURATION", lambda job: out.format_seconds(job.duration_s), right=True, drop=2),
    Column("RESTARTS", lambda job: str(job.restarts), right=True, drop=6),
    Column("REASON", reason_text, least=30),
)
HISTORY_COLUMNS: tuple[Column[Job], ...] = (
    Column("ID", lambda job: job.id, right=True),
    Column("NAME", lambda job: job.name or DASH, least=10),
    Column("USER", lambda job: job.user or DASH, drop=4, least=8),
    Column("QUEUE", lambda job: job.queue, drop=5, least=8),
    Column("STATE", state_of),
    Column("GPUS", lambda job: DASH if job.cpu else str(job.gpus.wanted), right=True, drop=2),
    Column("WAITED", lambda job: out.format_seconds(job.waited_s), right=True),
    Column("DURATION", lambda job: out.format_seconds(job.duration_s), right=True),
    Column("ENDED", lambda job: out.format_age(job.ended_s), right=True, drop=1),
    Column("RESTARTS", lambda job: str(job.restarts), right=True, drop=3),
    Column("DETAIL", reason_text, least=26),
)


def print_queue(jobs: Sequence[Job], empty: str) -> None:
    out.print_table(columns_for(jobs), jobs, empty)


def columns_for(jobs: Sequence[Job], columns: Sequence[Column[Job]] = QUEUE_COLUMNS) -> Sequence[Column[Job]]:
    """Return the columns for these jobs: ID and NAME are one where ids contain the name, as on a cluster."""
    if not jobs or not all(job.is_named_by_id and "/" in job.id for job in jobs):
        return columns
    return (Column("JOB", lambda job: job.id, least=24), *columns[2:])


def print_job(job: Job) -> None:
    out.print_rich(out.facts_table(_facts(job)))


def _facts(job: Job) -> list[tuple[str, str | Text]]:
    kind = f" of type {job.gpus.type}" if job.gpus.type else ""
    if job.stands_for:
        kind = f"; virtual GPUs stand for {' or '.join(job.stands_for)}"
    each = f", {job.gpus.per_node} per node" if job.gpus.per_node != 1 else ""
    places = ", ".join(
        f"{place.node}: {', '.join(map(str, place.gpus))}" if place.gpus else place.node for place in job.placement
    )
    times = [
        f"submitted {out.format_time(job.submitted_s)}",
        *([f"started {out.format_time(job.started_s)}"] if job.started_s is not None else []),
        *([f"ended {out.format_time(job.ended_s)}"] if job.ended_s is not None else []),
    ]
    return [
        ("job", job.label),
        ("state", state_of(job)),
        ("why", reason_text(job)),
        ("GPUs", f"{gpus_of(job)}{kind}{each}" if job.cpu is None else "none"),
        ("CPU", cpu_of(job)),
        ("on", places),
        ("ports", "" if job.is_over else ", ".join(job.endpoints)),
        ("progress", _full_progress(job)),
        ("done in", DASH if job.is_over else out.format_seconds(job.eta_s)),
        ("times", ", ".join(times)),
        ("waited", out.format_seconds(job.waited_s)),
        ("ran", out.format_seconds(job.duration_s)),
        ("restarts", str(job.restarts) if job.restarts else ""),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("image", str((job.task or {}).get("image_id") or "")),
        ("time limit", out.format_seconds((job.task or {}).get("max_exec_time_s"))),
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
