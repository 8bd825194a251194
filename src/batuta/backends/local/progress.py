"""What a job reports, from its files to the engine: new lines in, measured speed and progress out.

Beside `progress.jsonl`, Voda's per-epoch CSV is read where a script that was written for Voda leaves one. That is the
file that `VODA_METRICS_CSV` in the task's `envs` names (relative to its working directory), or else the first `*.csv`
in `$BATUTA_CHECKPOINT_DIR`, or beside it in the job's folder, whose first line has `epoch` and `epoch_time_sec`.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from batuta.backends.local.files import open_regular
from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.replica_plan import workdir_of
from batuta.core.cluster import NodeName, Placement
from batuta.core.event import JobProgressed
from batuta.core.job import Job
from batuta.engine.jobs.progress import JobProgress, TimedReport, sample_of
from batuta.engine.stragglers.rank_watch import RankRules, RankWatch
from batuta.prediction import Run, SpeedMeter, replay
from batuta.spec.progress import ProgressReport, parse_line, parse_voda_csv
from batuta.spec.task import Task
from batuta.spec.task_resources import rank_settings

_MOST_BYTES = 1024 * 1024
_PIECE_BYTES = 32 * 1024
"""So much is read at a poll, some hundred reports: a job that reports without end must not hold up all others."""
_LAST_PIECES = 4  # of what is unread when a run has ended


class ProgressTail:
    """Yields each complete line of a file once, as the file grows; starts again when it is replaced or cut.

    One poll of a file that has not changed is one `stat`. A poll reads a piece, or one line of at most `most_bytes`; a
    line longer than that is left out.
    """

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES, owner: int | None = None) -> None:
        """With an `owner` only a file of that user is read."""
        self._path = path
        self._owner = owner
        self._most_bytes = most_bytes
        self._inode = self._offset = 0
        self._in_long_line = False

    def poll(self, *, at_end: bool = False) -> list[str]:
        """The new lines. `at_end`: nothing more will be written, so the last line may lack its newline."""
        try:
            found = os.stat(self._path, follow_symlinks=self._owner is None)
        except OSError:
            return []
        if found.st_ino != self._inode:
            # What is unread of the file that had our name before, if it was moved to `.1`.
            rotated = self._path.with_name(f"{self._path.name}.1")
            if self._inode and (rest := self._read(rotated, at_end=True)):
                return rest
            self._go_to(found.st_ino, 0)
        elif found.st_size < self._offset:
            self._go_to(found.st_ino, 0)
        if found.st_size == self._offset:
            return []
        return self._read(self._path, at_end=at_end)

    def _read(self, path: Path, *, at_end: bool) -> list[str]:
        try:
            # A job may put anything in its place: a FIFO would wait for a writer.
            file = open_regular(path, self._owner)
        except OSError:
            return []
        try:
            if os.fstat(file).st_ino != self._inode:
                return []  # replaced this instant: next time
            most = min(_PIECE_BYTES, self._most_bytes)
            data = os.pread(file, most, self._offset)
            if len(data) == most and b"\n" not in data:
                most = self._most_bytes
                data = os.pread(file, most, self._offset)
        except OSError:
            return []  # a folder, or the disk is broken
        finally:
            os.close(file)
        is_full = len(data) == most
        whole = len(data) if at_end and not is_full else data.rfind(b"\n") + 1
        if whole == 0:
            if is_full:
                self._go_to(self._inode, self._offset + len(data), in_long_line=True)
            return []
        lines = data[:whole].decode("utf-8", "replace").removesuffix("\n").split("\n")
        if self._in_long_line:
            del lines[0]
        self._go_to(self._inode, self._offset + whole)
        return lines

    def skip(self, to_bytes: int | None = None) -> None:
        """Leaves out what is unread but for the last `to_bytes`; without a number, where that is over `most_bytes`."""
        try:
            found = os.stat(self._path, follow_symlinks=self._owner is None)
        except OSError:
            return
        rest = self._most_bytes if to_bytes is None else to_bytes
        if found.st_ino == self._inode and found.st_size - self._offset > rest:
            self._go_to(self._inode, found.st_size - rest, in_long_line=True)

    def _go_to(self, inode: int, offset: int, *, in_long_line: bool = False) -> None:
        self._inode, self._offset, self._in_long_line = inode, offset, in_long_line


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
        reports = parse_voda_csv(data, timezone=local, final=at_end)
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


_MOST_READS = 256  # pieces of a long file that a server which starts again reads: 8 MiB
_LONG_BEFORE_S = 60.0  # what is so much older than a run is of no run: more than a clock may be off


class ProgressFeed:
    """Reads the reports in one job's files once each, and hands them to its `JobProgress`."""

    def __init__(self, files: JobFiles, task: Task, job: Job, ranks: RankRules = RankRules()) -> None:  # noqa: B008
        self._job = job
        self.progress = JobProgress(job.id, RankWatch(job.id, ranks.for_job(rank_settings(dict(task.labels)))))
        self.meter: SpeedMeter = self.progress.know(job).meter
        self._tail = ProgressTail(files.progress, owner=files.owner)
        # Voda's file may be anywhere: a server of root's would read it for a user who may not.
        self._voda = VodaSource(files, task) if files.owner is None else None

    def remember(self, past: Sequence[Run], now_s: float) -> None:
        """Feeds the meter anew with all that was reported so far, after a restart of the server."""
        reports = self._read(now_s, at_end=False, most=_MOST_READS)
        self.progress.note(_timed(report, now_s) for report in reports)
        # A report without a time says how far the job was, and nothing any more about speed.
        time_s = min(run.began_s for run in past) - _LONG_BEFORE_S
        samples = []
        for report in reports:
            time_s = time_s if report.time_s is None else report.time_s
            samples.append(sample_of(report, time_s))
        replay(self.meter, past, samples)
        if any(report.time_s is None for report in reports):
            # Nor when the present run had started up: the next report must not count as its first.
            self.meter.transitions.progressed(-math.inf)

    def began(self, time_s: float, number: int, placement: Placement, places: Sequence[NodeName] = ()) -> None:
        """A run begins, or has been going on since then; `places`: the node of each replica, if known."""
        self.progress.began(self._job, number, placement.size, placement.nodes, places, time_s)

    def read(self, now_s: float, *, at_end: bool = False) -> None:
        self._tail.skip(_LAST_PIECES * _PIECE_BYTES if at_end else None)
        most = _LAST_PIECES + 1 if at_end else 1
        reports = [_timed(report, now_s) for report in self._read(now_s, at_end=at_end, most=most)]
        self.progress.note(reports)
        self.progress.measure(reports, now_s)

    def poll(self, now_s: float, *, at_end: bool = False) -> JobProgressed | None:
        """The same, and an event when it is worth one: at the end of a run, whatever is new."""
        self.read(now_s, at_end=at_end)
        return self.progress.news(now_s, at_last=at_end)

    def _read(self, now_s: float, *, at_end: bool, most: int) -> list[ProgressReport]:
        found: list[ProgressReport] = []
        for _ in range(most):
            lines = self._tail.poll(at_end=at_end)
            found += filter(None, map(parse_line, filter(None, lines)))
            if not lines:
                break
        return found if self._voda is None else [*found, *self._voda.poll(now_s, at_end=at_end)]


def _timed(report: ProgressReport, now_s: float) -> TimedReport:
    """Made when the report says, or when it was read where it does not."""
    return TimedReport(report, now_s if report.time_s is None else report.time_s)
