"""The files of a job: where they lie, and the records of its runs.

jobs/<id>/
  journal-id          which journal knows this job
  job.json            the history of runs that are over (`RunHistory`); outlives the server and the runs
  runs/<n>/           the current or the last run
    run.json          what another server has to know of it (`RunRecord`)
    <rank>/           one replica (processes.py)
    checkpoint-*      how a checkpoint is requested and acknowledged; beside it host lists, result.json
  logs/rank-<r>.log   continues through restarts
  checkpoints/        $BATUTA_CHECKPOINT_DIR
  progress.jsonl      $BATUTA_PROGRESS
  result.json         the job's return value
  setup-markers/      the ranks that did their setup, for a task that has one
  work/               the working directory of a task that names none

Of a job that runs as another user than the server, what it reads and writes itself lies elsewhere (tenants.py):
checkpoints, progress, the working directory, and for each run the folder by which it talks to its server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from batuta.backends.local.files import (
    DirectoryPool,
    list_folder,
    move_to_trash,
    read_json,
    read_small,
    unless_gone,
    write_json,
    write_small,
)
from batuta.backends.local.tenants import TenantFolder
from batuta.core.cluster import Placement, Span
from batuta.core.job import JobId
from batuta.prediction import Run

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_LOG = re.compile(r"rank-(\d+)\.log")
LARGEST_RESULT_BYTES = 2**24


def folder_name(job: JobId) -> str:
    """A job's id as the name of a folder; whatever it holds, it is one name and no way out."""
    return job if _PLAIN.fullmatch(job) else quote(job, safe="").replace(".", "%2E")


class JobFiles:
    """The files of one job."""

    def __init__(self, root: Path, job: JobId, tenant: TenantFolder | None = None) -> None:
        """`tenant` is where the rest of it lies, if it runs as another user than the server."""
        self._root = root.absolute()
        self.tenant = tenant
        self.folder = folder = self._root / f"jobs/{folder_name(job)}"
        self.history = folder / "job.json"
        self.runs = folder / "runs"
        within = folder if tenant is None else tenant.path
        self.checkpoints = within / "checkpoints"
        self.progress = (within if tenant is None else within / "reports") / "progress.jsonl"
        self.result = folder / "result.json"
        self.work = within / "work"
        self._logs = folder / "logs"
        self._setup_markers = folder / "setup-markers"

    def run(self, number: int) -> Path:
        return self.runs / str(number)

    def replica(self, number: int, rank: int) -> Path:
        return self.run(number) / str(rank)

    def control(self, number: int) -> Path:
        """$BATUTA_CONTROL, by which a run and its server talk: gone with the run."""
        return self.run(number) if self.tenant is None else self.tenant.run(number) / "control"

    def shown(self, number: int) -> Path:
        """Where the server writes what a run is to read."""
        return self.run(number) if self.tenant is None else self.tenant.run(number)

    def scripts(self, number: int, rank: int) -> Path:
        """The folder of a replica's scripts."""
        return self.replica(number, rank) if self.tenant is None else self.tenant.scripts(number, rank)

    @property
    def owner(self) -> int | None:
        """The user id that files of the job have to have, for the server to read them; None: any."""
        return None if self.tenant is None else self.tenant.uid

    def log(self, rank: int) -> Path:
        return self._logs / f"rank-{rank}.log"

    def setup_marker(self, rank: int) -> Path:
        """Made when a rank has done its setup. All nodes are this machine: a resize does it not again."""
        return self._setup_markers / str(rank)

    def setup_lock(self, node: str) -> Path:
        """Held by the replica whose setup runs: on one node they run one after another."""
        return self._setup_markers / f"{quote(node, safe='')}.lock"

    def prepare(self, number: int, pool: DirectoryPool | None = None) -> None:
        """Makes the folder of a run. OSError when that is not possible."""
        if self.tenant is not None:
            self.tenant.prepare(number, is_first=not os.path.lexists(self.folder))
        if number == 0 and pool is not None and pool.take(self.folder):
            return
        run = str(self.run(number))
        try:
            os.mkdir(run, 0o700)
        except FileExistsError:
            return
        except FileNotFoundError:
            # It is the first run. Only the owner may look into these folders.
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.folder, self.runs, run):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
            if pool is not None:
                pool.stamp(self.folder)

    def replica_folders(self, *, with_setup: bool) -> list[Path]:
        """The folders that replicas find; each makes those that are not there yet."""
        own = [self.checkpoints, self.work] if self.tenant is None else []  # those of another user are there
        return [self._logs, *own, *([self._setup_markers] if with_setup else [])]

    def run_numbers(self) -> list[int]:
        """The runs that there are, ascending. CannotTell when that cannot be read now."""
        return sorted(int(name) for name in list_folder(self.runs) if name.isdecimal())

    def replica_folders_of(self, number: int) -> list[Path]:
        """The folders of the replicas of a run that were begun with."""
        return [self.run(number) / name for name in list_folder(self.run(number)) if name.isdecimal()]

    def ranks(self) -> list[int]:
        """The ranks that have ever logged something."""
        try:
            found = map(_LOG.fullmatch, os.listdir(self._logs))
        except OSError:
            return []
        return sorted(int(match[1]) for match in found if match)

    def keep_result(self, number: int) -> None:
        """Takes over the result that a run left, so that it outlives the run. CannotTell when it cannot be read now."""
        source = self.control(number) / "result.json"
        try:
            found = os.lstat(source)
            if self.owner is not None:
                # Copied: what is moved by its name could be another file by then.
                write_small(self.result, read_small(source, LARGEST_RESULT_BYTES, self.owner))
            elif stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_RESULT_BYTES:
                os.replace(source, self.result)
        except OSError as problem:
            unless_gone(problem)
        try:
            os.close(os.open(self.result, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as problem:
            unless_gone(problem)

    def read_result(self) -> str | None:
        """The job's return value as JSON; None when it gave none."""
        try:
            text = read_small(self.result, LARGEST_RESULT_BYTES).decode("utf-8")
            json.loads(text)
        except (OSError, ValueError, RecursionError):
            return None
        return text

    def discard_run(self, number: int) -> None:
        """Forgets a run of which no process is left. A run is there as a whole or not at all."""
        move_to_trash(self._root, self.run(number))
        if self.tenant is not None:
            move_to_trash(self.tenant.area, self.tenant.run(number))

    def tidy(self) -> None:
        """Keeps of a job that is over what people want: logs, progress, result and checkpoints."""
        for folder in (self.runs, self._setup_markers):
            move_to_trash(self._root, folder)
        if self.tenant is not None:
            move_to_trash(self.tenant.area, self.tenant.path / "runs")
        with contextlib.suppress(OSError):
            self.work.rmdir()  # only when nothing is in it

    def remove(self) -> None:
        move_to_trash(self._root, self.folder)
        if self.tenant is not None:
            move_to_trash(self.tenant.area, self.tenant.path)


def jobs_with_runs(root: Path) -> Iterator[tuple[JobId, JobFiles]]:
    """All jobs below a root of which something may run. CannotTell when that cannot be read now."""
    for name in sorted(list_folder(root / "jobs")):
        if (root / "jobs" / name / "runs").is_dir():
            job = unquote(name)
            yield job, JobFiles(root, job)


def job_folders(root: Path) -> Iterator[tuple[JobId, Path]]:
    """All folders of jobs below a root. OSError when they cannot be listed."""
    try:
        names = sorted(os.listdir(root / "jobs"))
    except FileNotFoundError:
        return
    for name in names:
        yield unquote(name), root / "jobs" / name


_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One start of a job, all replicas together. Written before any of them is started."""

    job: JobId
    number: int  # how often the job was started before: BATUTA_RESTART
    placement: Placement
    ranks: int  # replicas that are started; fewer than there are places for where one starts the others
    port: int
    started_s: float
    key: str = field(default_factory=lambda: secrets.token_hex(6))
    """Makes its replicas' run ids unique on this machine, for all time."""
    asked_s: float | None = None  # when a checkpoint was asked for, because it is to stop
    leaving: bool = False
    """It was told to stop, because it is wanted elsewhere or not at all: how it ends then is no failure."""
    interrupted: bool = False  # it was told to stop because the server shut down, not by a decision of the scheduler
    trailing: bool = False  # rank 0 had ended well, and the others were told to stop because they did not follow
    started_on: Placement | None = None  # where it was started, when it has changed its place without a restart since

    @property
    def first(self) -> Placement:
        return self.started_on or self.placement

    def run_id(self, rank: int) -> str:
        return f"b-{_UNFIT.sub('-', self.job)[:80]}-{self.number}-{rank}-{self.key}"

    def moved_to(self, placement: Placement) -> RunRecord:
        return replace(self, placement=placement, started_on=self.first)

    def left(self, *, interrupted: bool = False) -> RunRecord:
        return replace(self, leaving=True, interrupted=interrupted)


def write_record(files: JobFiles, record: RunRecord) -> None:
    """Writes a new version of the record. OSError when that is not possible."""
    write_json(_path(files, record.number), _content(record))


def write_first_record(files: JobFiles, record: RunRecord) -> None:
    """Writes the record before anything is started: one that is half-written is as good as none."""
    write_small(_path(files, record.number), json.dumps(_content(record)).encode())


def _content(record: RunRecord) -> dict[str, Any]:
    plain = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    for name in ("placement", "started_on"):
        plain[name] = plain[name] and [[span.node, list(span.gpus)] for span in plain[name].spans]
    return plain | {"size": record.placement.units}


def read_record(files: JobFiles, number: int) -> RunRecord | None:
    """The record of a run; None when it was never written, so that nothing was ever started. CannotTell otherwise."""
    content = read_json(_path(files, number))
    try:
        return RunRecord(
            str(content["job"]),
            int(content["number"]),
            _placement(content["placement"]),
            int(content["ranks"]),
            int(content["port"]),
            float(content["started_s"]),
            str(content["key"]),
            content["asked_s"],
            bool(content["leaving"]),
            bool(content["interrupted"]),
            bool(content.get("trailing", False)),
            None if content["started_on"] is None else _placement(content["started_on"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _path(files: JobFiles, number: int) -> Path:
    return files.run(number) / "run.json"


def _placement(spans: Any) -> Placement:
    return Placement(tuple(Span(node, tuple(gpus)) for node, gpus in spans))


_MOST_PAST = 64
STABLE_RUN_S = 300.0  # a run this long was no crash at the start: the back-off begins anew


@dataclass(slots=True)
class RunHistory:
    """Kept by one server at a time. To note an end is not to keep it: a job that is over needs no file."""

    path: Path
    counted: int = -1  # the last run whose end is in here. To hear of an end twice must not count it twice.
    failures: int = 0  # those that count towards the limit
    streak: int = 0  # consecutive ends that were not planned: the exponent of the back-off
    ran_s: float = 0.0  # how long all runs together have run, for the time limit
    past: list[Run] = field(default_factory=list)  # the last runs, for the meter
    is_kept: bool = True  # whether the file says all of it

    def note(self, number: int, run: Run | None, ran_s: float, *, failed: bool, unwanted: bool) -> None:
        """Takes down the end of a run, once."""
        if number <= self.counted:
            return
        self.counted, self.is_kept = number, False
        self.failures += failed
        if unwanted:
            self.streak = 1 if ran_s >= STABLE_RUN_S else self.streak + 1
        self.ran_s += ran_s
        if run is not None:
            self.past = [*self.past[1 - _MOST_PAST :], run]

    def keep(self) -> None:
        """Writes down what is new. OSError when it cannot be written now; then it is tried again with the next call."""
        if self.is_kept:
            return
        content = {name: value for name, value in dataclasses.asdict(self).items() if name not in {"path", "is_kept"}}
        write_json(self.path, content)
        self.is_kept = True


def past_run(record: RunRecord, checkpointed_s: float | None = None, stopped_s: float | None = None) -> Run:
    """A run as the meter wants to know it."""
    return Run(
        record.started_s,
        record.placement.size or 1,  # a CPU-only job has one speed
        len(record.placement.nodes),
        asked_s=record.asked_s,
        checkpointed_s=checkpointed_s,
        stopped_s=stopped_s,
    )


def read_run_history(path: Path) -> RunHistory:
    """The history at a path; an empty one where there is none. CannotTell when it cannot be read now."""
    content = read_json(path)
    try:
        return RunHistory(
            path,
            int(content["counted"]),
            int(content["failures"]),
            int(content["streak"]),
            float(content["ran_s"]),
            [Run(**run) for run in content["past"]],
        )
    except (KeyError, TypeError, ValueError):
        return RunHistory(path)
