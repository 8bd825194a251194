"""`batuta logs`: print and follow the output of a job, and read that of deleted pods from Loki."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.apitypes.resources import Job
from batuta.cli.job_view import NOT_FOUND, exit_code_of, reason_text
from batuta.cli.options import (
    HomeOption,
    JobArgument,
    command_line,
    connect,
    flag,
    option,
    parse_time_s,
    target_cluster,
)
from batuta.cli.output import console, format_seconds, format_time, print_stderr, spinner
from batuta.client.connection import Connection
from batuta.client.errors import ClientError, OutputGoneError, UnknownJobError
from batuta.spec.problem import InputError, Problem

if TYPE_CHECKING:
    from batuta.client.loki import LokiAddress


LokiOption = Annotated[
    str | None, option("A Loki that has the output of pods that are gone; default $BATUTA_LOKI.", "URL")
]
TenantOption = Annotated[
    str | None, option("The tenant whose logs are read, where Loki has several; default $BATUTA_LOKI_TENANT.", "NAME")
]
_MAX_PARTIAL_LINE = 8 << 10  # a line without end is printed when it has so many bytes
_LAUNCHER_KINDS = ("mpi", "horovod-elastic", "MPIJob", "ElasticHorovod")
"""Kinds of job whose launcher prints what all its workers print."""
_HINT = "--loki URL, or $BATUTA_LOKI, reads what a Loki has kept of it"
_SLACK_S = 60.0  # clocks of nodes differ a little
_PRINTS_AFTER_END_S = 3600.0  # how long after the end of a job its pods may still print
_DELETED_LOOKBACK_S = 7 * 86_400.0  # how far back to search for the output of a deleted job, whose times are unknown


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which output of a job to print."""

    rank: int | None = None  # None: all ranks; from Loki, rank 0
    tail: int | None = None
    since_s: float | None = None
    loki: LokiAddress | None = None


def logs(
    job: JobArgument,
    follow: Annotated[bool, flag("--follow/--no-follow", "Go on until the job ends.")] = True,
    tail: Annotated[int | None, option("Begin with the last N lines.", "N", names="--tail -n", min=0)] = None,
    since: Annotated[
        str | None, option("On a cluster: nothing older, as in 2h (ago), 09:30 or '2026-11-16 08:30'.", "TIME")
    ] = None,
    node_rank: Annotated[
        int | None, option("One replica's, as it was printed; default: all, each line with its rank.", "R", min=0)
    ] = None,
    status: Annotated[bool, flag("--status", "Print nothing but the state; the exit code tells it too.")] = False,
    loki: LokiOption = None,
    loki_tenant: TenantOption = None,
    home: HomeOption = None,
) -> None:
    """Print what a job prints, and follow it until it ends.

    Of a job with several nodes all are shown, each line with its rank: as it comes, or node by node when the
    job is over.

    Exit codes: 0 succeeded, 100 failed, 103 cancelled; with --status also 101 not finished, 102 not found.
    With --no-follow it is 0.

    On a cluster, the output of pods that are gone comes from a Loki, if one is named; a token for it is read
    from $BATUTA_LOKI_TOKEN.

    Examples:
      batuta logs resnet
      batuta logs 17 --no-follow --tail 100 --node-rank 1
      batuta logs 17 --status || echo "not yet, or not well"
      batuta -n team-a logs resnet --since 2d --loki http://loki.example:3100
    """
    with connect(home) as client:
        if status:
            raise typer.Exit(_print_state(client, job))
        request = _log_request(home, node_rank, tail, since, loki, loki_tenant)
        try:
            found = client.job(job)
        except UnknownJobError as unknown:
            print_log_of_deleted(client, job, request, unknown)
            return
        if follow and not found.is_over:
            raise typer.Exit(follow_output(client, found, request))
        print_log(client, found, request)
        if follow:
            raise typer.Exit(exit_code_of(found))


def _log_request(
    home: Path | None, rank: int | None, tail: int | None, since: str | None, loki: str | None, tenant: str | None
) -> LogRequest:
    """Return the options as a request. A server keeps all output, without the time of each line."""
    if target_cluster(home) is None:
        given = {"--since": since, "--loki": loki, "--loki-tenant": tenant}
        fix = "batuta -n NAMESPACE logs …"
        if problems := [Problem(f"{name} is for a cluster", fix=fix) for name, value in given.items() if value]:
            raise InputError(problems)
        return LogRequest(rank, tail)
    since_s = None if since is None else parse_time_s(since, "--since", time.time())
    return LogRequest(rank, tail, since_s, find_loki(loki, tenant))


def _print_state(client: Connection, job: str) -> int:
    try:
        found = client.job(job)
    except UnknownJobError as error:
        print_stderr(str(error))
        return NOT_FOUND
    typer.echo(found.state)
    return exit_code_of(found)


def print_log(client: Connection, job: Job, request: LogRequest) -> None:
    pieces = output_of(client, job, request, follow=False)
    try:
        first = next(pieces, b"")
    except OutputGoneError as gone:
        if request.loki is None:
            print_stderr(f"{gone}: {_HINT}")
            return
        now_s = time.time()
        # From its submit on: an earlier job may have had the same name.
        from_s = (now_s - _DELETED_LOOKBACK_S if job.submitted_s is None else job.submitted_s) - _SLACK_S
        end_s = math.inf if job.ended_s is None else job.ended_s + _PRINTS_AFTER_END_S
        _print_from_loki(job.id, request, request.loki, gone, from_s, min(now_s + _SLACK_S, end_s))
    else:
        write_output(chain([first], pieces))


def follow_output(client: Connection, job: Job, request: LogRequest | None = None) -> int:
    """Print the output until the job ends, and return its exit code. Ctrl-C detaches, and the job goes on."""

    def follow() -> Job:
        _wait_for_start(client, job)
        write_output(output_of(client, job, request or LogRequest(), follow=True))
        return client.wait(job)

    return _exit_code_after(job, follow)


def wait_for_end(client: Connection, job: Job) -> int:
    """Wait without output, with a bar on a terminal, and return the exit code of the job."""
    return _exit_code_after(job, lambda: _with_bar(client, job) if sys.stderr.isatty() else client.wait(job))


def _exit_code_after(job: Job, wait: Callable[[], Job]) -> int:
    try:
        job = wait()
    except KeyboardInterrupt:
        print_stderr(
            f"\ndetached; job {job.label} goes on.\n"
            f"  {command_line('logs', job.id)}     to see its output again\n"
            f"  {command_line('cancel', job.id)}   to end it"
        )
        return 0
    ran = f" after {format_seconds(job.duration_s)}" if job.duration_s is not None else ""
    print_stderr(f"job {job.label} {job.state}{ran}{_reason(job)}")
    return exit_code_of(job)


def _reason(job: Job) -> str:
    return f": {reason_text(job)}" if reason_text(job) else ""


def output_of(client: Connection, job: Job, request: LogRequest, *, follow: bool) -> Iterator[bytes]:
    """Return the output of one rank; or of all, each line with its rank if there may be several."""
    tail, since_s = request.tail, request.since_s
    if request.rank is None and has_several_ranks(client.job(job.id)):
        return ranked_lines(client.rank_logs(job, tail=tail, since_s=since_s, follow=follow))
    return client.log_bytes(job, rank=request.rank or 0, tail=tail, since_s=since_s, follow=follow)


def has_several_ranks(job: Job) -> bool:
    """Return whether more than one rank prints, now or after a resize."""
    if job.kind in _LAUNCHER_KINDS:
        return False
    task = job.task or {}
    nodes = max(task.get("num_nodes") or 1, (task.get("elastic") or {}).get("max_nodes") or 1)
    has = job.gpus.max // max(1, job.gpus.per_node) if job.cpu is None else job.cpu.replicas
    return max(nodes, has) > 1


def ranked_lines(pieces: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield output of several ranks as whole lines, each after `(head, rank=0)` or `(worker1, rank=1)`."""
    parts: dict[int, bytes] = {}
    for rank, piece in pieces:
        *lines, parts[rank] = (parts.get(rank, b"") + piece).split(b"\n")
        if len(parts[rank]) > _MAX_PARTIAL_LINE:
            lines.append(parts[rank])
            parts[rank] = b""
        yield b"".join(_with_rank(rank, line) for line in lines)
    yield from (_with_rank(rank, part) for rank, part in sorted(parts.items()) if part)


def _with_rank(rank: int, line: bytes) -> bytes:
    """Return the line with its rank; of a progress bar that overwrites itself, only the last state."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    who = "head" if rank == 0 else f"worker{rank}"
    return f"({who}, rank={rank}) ".encode() + shown + b"\n"


def write_output(pieces: Iterable[bytes]) -> bool:
    """Write the bytes unchanged, with colours and bars, and return whether there were any."""
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


def _wait_for_start(client: Connection, job: Job) -> None:
    """Wait until the job starts; a terminal shows why it waits."""
    from rich.markup import escape

    def started(now: Job) -> bool:
        return now.is_over or now.started_s is not None or now.state not in ("PENDING", "PREEMPTED")

    def tell(now: Job) -> None:
        status.update(escape(f"job {now.label} is {now.state}{_reason(now)}"))

    with spinner(f"job {job.label} waits") as status:
        client.wait_until(job, started, tell=tell)


def _with_bar(client: Connection, job: Job) -> Job:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        shown = bar.add_task(f"{job.label} {job.state}", total=None)

        def tell(now: Job) -> None:
            fraction = now.progress.fraction if now.progress is not None else None
            total = None if fraction is None else 1.0
            bar.update(shown, description=f"{now.label} {now.state}", completed=fraction or 0.0, total=total)

        return client.wait(job, tell=tell)


def find_loki(url: str | None, tenant: str | None) -> LokiAddress | None:
    """Return the Loki of the options or the environment, else None. Its token is in the environment."""
    from batuta.client.loki import LOKI_VARIABLE, TENANT_VARIABLE, TOKEN_VARIABLE, LokiAddress

    url = url or os.environ.get(LOKI_VARIABLE)
    if not url:
        return None
    tenant = tenant or os.environ.get(TENANT_VARIABLE, "")
    return LokiAddress.of(url, os.environ.get(TOKEN_VARIABLE, ""), tenant)


def print_log_of_deleted(client: Connection, name: str, request: LogRequest, unknown: UnknownJobError) -> None:
    """Print the output of a deleted job from Loki; raise `unknown` where there is none."""
    if request.loki is None:
        raise unknown
    from batuta.client.kube.client import KubeClient

    namespace = client.namespace_of(name) if isinstance(client, KubeClient) else ""
    if not namespace:
        raise unknown
    now_s = time.time()
    job_id = f"{namespace}/{name.rpartition('/')[2]}"
    if not _print_from_loki(job_id, request, request.loki, unknown, now_s - _DELETED_LOOKBACK_S, now_s):
        raise unknown


def _print_from_loki(
    job_id: str, request: LogRequest, address: LokiAddress, why: ClientError, from_s: float, to_s: float
) -> bool:
    """Print what Loki has of a replica, and return whether it has something."""
    from batuta.client.loki import ArchivedJob, Loki, archived_output

    if request.since_s is not None:
        from_s = max(from_s, request.since_s)
    namespace, _, name = job_id.rpartition("/")
    rank = request.rank or 0
    old = ArchivedJob(namespace, name, rank, from_s, to_s)
    with Loki(address) as loki:
        print_stderr(f"{why}: what follows is from Loki at {loki.name}")
        found = write_output(archived_output(loki, old, request.tail, lambda text: print_stderr(f"note: {text}")))
        if not found:
            print_stderr(f"Loki has nothing of replica {rank} of job {job_id} since {format_time(from_s)}")
    return found
