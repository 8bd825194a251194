"""Where a job's files lie.

jobs/<id>/
  job.json            what is remembered of runs that are over (ledger.py)
  runs/<n>/           the run that is, or was last
    run.json          what a next server has to know of it (run_record.py)
    <rank>/           one replica (processes.py)
    checkpoint-*      how a checkpoint is asked for and answered; beside it host lists, result.json
  logs/rank-<r>.log   goes on through restarts
  checkpoints/        $BATUTA_CHECKPOINT_DIR
  progress.jsonl      $BATUTA_PROGRESS
  result.json         the job's return value
  setup-markers/      the nodes on which setup was done, for a task that has one
  work/               the working directory of a task that names none
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

from batuta.backends.local.blanks import Blanks
from batuta.backends.local.small_files import read_small
from batuta.backends.local.trash import throw_away
from batuta.core.job import JobId

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_LOG = re.compile(r"rank-(\d+)\.log")
LARGEST_RESULT_BYTES = 2**24


def folder_name(job: JobId) -> str:
    """A job's id as the name of a folder; whatever it holds, it is one name and no way out."""
    return job if _PLAIN.fullmatch(job) else quote(job, safe="").replace(".", "%2E")


class JobFiles:
    """The files of one job."""

    def __init__(self, root: Path, job: JobId) -> None:
        self._root = root.absolute()
        self.folder = self._root / f"jobs/{folder_name(job)}"
        self._runs: dict[int, Path] = {}

    @cached_property
    def ledger(self) -> Path:
        return self.folder / "job.json"

    @cached_property
    def runs(self) -> Path:
        return self.folder / "runs"

    @cached_property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @cached_property
    def progress(self) -> Path:
        return self.folder / "progress.jsonl"

    @cached_property
    def result(self) -> Path:
        return self.folder / "result.json"

    @cached_property
    def work(self) -> Path:
        return self.folder / "work"

    @cached_property
    def _logs(self) -> Path:
        return self.folder / "logs"

    @cached_property
    def _setup_markers(self) -> Path:
        return self.folder / "setup-markers"

    def run(self, number: int) -> Path:
        found = self._runs.get(number)
        if found is None:
            found = self._runs[number] = self.folder / f"runs/{number}"
        return found

    def replica(self, number: int, rank: int) -> Path:
        return self.run(number) / str(rank)

    def control(self, number: int) -> Path:
        """$BATUTA_CONTROL, by which a run and its server talk: gone with the run."""
        return self.run(number)

    def log(self, rank: int) -> Path:
        return self.folder / f"logs/rank-{rank}.log"

    def setup_marker(self, node: str) -> Path:
        return self._setup_markers / quote(node, safe="")

    def prepare(self, number: int, blanks: Blanks | None = None) -> None:
        """Makes the folder of a run. OSError when that is not possible."""
        if number == 0 and blanks is not None and blanks.become(self.folder):
            return
        run = str(self.run(number))
        try:
            os.mkdir(run, 0o700)
        except FileExistsError:
            return
        except FileNotFoundError:
            # It is the first one. Nobody else may look into any of them.
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.folder, self.runs, run):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)

    def premises(self, *, with_setup: bool) -> list[Path]:
        """The folders that replicas find; each makes those that are not there yet."""
        return [self._logs, self.checkpoints, self.work, *([self._setup_markers] if with_setup else [])]

    def run_numbers(self) -> list[int]:
        """The runs that there are, ascending."""
        try:
            return sorted(int(name) for name in os.listdir(self.runs) if name.isdecimal())
        except OSError:
            return []

    def ranks(self) -> list[int]:
        """The ranks that have ever logged something."""
        try:
            found = map(_LOG.fullmatch, os.listdir(self._logs))
        except OSError:
            return []
        return sorted(int(match[1]) for match in found if match)

    def keep_result(self, number: int) -> None:
        """Takes over the result that a run left, so that it outlives the run."""
        source = self.control(number) / "result.json"
        with contextlib.suppress(OSError):
            found = os.lstat(source)
            if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_RESULT_BYTES:
                os.replace(source, self.result)

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
        throw_away(self._root, self.run(number))

    def tidy(self) -> None:
        """Keeps of a job that is over what people want: logs, progress, result and checkpoints."""
        for folder in (self.runs, self._setup_markers):
            throw_away(self._root, folder)
        with contextlib.suppress(OSError):
            self.work.rmdir()  # only when nothing is in it

    def remove(self) -> None:
        throw_away(self._root, self.folder)


def jobs_with_runs(root: Path) -> Iterator[tuple[JobId, JobFiles]]:
    """All jobs below a root of which something may run."""
    try:
        names = sorted(os.listdir(root / "jobs"))
    except OSError:
        return
    for name in names:
        if (root / "jobs" / name / "runs").is_dir():
            job = unquote(name)
            yield job, JobFiles(root, job)
