"""Voda's per-epoch CSV of a job, where a script that was written for Voda leaves one.

That is the file that `VODA_METRICS_CSV` in the task's `envs` names (relative to its working directory), or
else the first `*.csv` in `$BATUTA_CHECKPOINT_DIR`, or beside it in the job's folder, whose first line has
`epoch` and `epoch_time_sec`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.place_plan import workdir_of
from batuta.spec.progress import ProgressReport
from batuta.spec.task import Task
from batuta.spec.voda_csv import parse_voda_csv

CSV_VARIABLE = "VODA_METRICS_CSV"
_LARGEST_BYTES = 4 * 2**20
_EVERY_S, _SELDOM_S = 2.0, 30.0
"""Epochs are long, and to look into folders is dear: the longer nothing was found, the less often."""
_MOST_ENTRIES = 2000


class VodaSource:
    """Yields each row once. Costs nothing where there is no such file, but a look into two folders."""

    def __init__(self, files: JobFiles, task: Task) -> None:
        named = dict(task.envs).get(CSV_VARIABLE)
        self._path = workdir_of(task, files) / named if named else None
        self._folders = () if named else (files.checkpoints, files.folder)
        self._look_s = 0.0
        self._pause_s = _EVERY_S
        self._seen: tuple[int, int] | None = None
        self._rows = 0

    def poll(self, now_s: float, *, at_end: bool = False) -> Sequence[ProgressReport]:
        """The rows that are new."""
        if now_s < self._look_s and not at_end:
            return ()
        if self._path is None:
            self._pause_s = min(self._pause_s * 1.5, _SELDOM_S)
            self._path = next((path for path in self._candidates() if _is_voda(path)), None)
        if self._path is None:
            self._look_s = now_s + self._pause_s
            return ()
        self._look_s = now_s + _EVERY_S
        return self._read(self._path, at_end=at_end)

    def _read(self, path: Path, *, at_end: bool) -> Sequence[ProgressReport]:
        try:
            found = path.stat()
            seen = (found.st_mtime_ns, found.st_size)
            if (seen == self._seen and not at_end) or not _is_readable(found):
                return ()
            data = path.read_bytes()
        except OSError:
            return ()
        self._seen = seen
        local = datetime.now().astimezone().tzinfo
        assert local is not None
        reports = parse_voda_csv(data, timezone=local, final=at_end).reports
        if len(reports) < self._rows:
            self._rows = 0  # another file has its name now
        fresh, self._rows = reports[self._rows :], len(reports)
        return fresh

    def _candidates(self) -> Iterator[Path]:
        for folder in self._folders:
            try:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
            except OSError:
                continue
            yield from (folder / name for name in sorted(names) if name.endswith(".csv"))


def _is_voda(path: Path) -> bool:
    try:
        if not _is_readable(path.stat()):
            return False
        with open(path, "rb") as file:
            header = file.readline(4096).decode("utf-8-sig", "replace")
    except OSError:
        return False
    return {"epoch", "epoch_time_sec"} <= {cell.strip().strip('"') for cell in header.split(",")}


def _is_readable(found: os.stat_result) -> bool:
    """Whether to read it ends, and soon: a FIFO would wait for a writer."""
    return stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_BYTES
