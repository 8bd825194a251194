"""Results as files for other tools: JSONL or Parquet, one row per job or per change of the cluster.

Writes are atomic: a file is written under a temporary name, made durable, and renamed.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from batuta.backends.sim.result import RunResult

JSONL = ".jsonl"
PARQUET = ".parquet"


class NotWritable(ValueError):
    """A path that results cannot be written to, with the reason and the fix."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file: its name, its type in Arrow's words, and its values in one run."""

    name: str
    arrow_type: str
    values: Callable[[RunResult], Sequence[Any]]


def _of_run(name: str, arrow_type: str) -> Column:
    return Column(name, arrow_type, lambda run: [getattr(run, name)])


def _of_job(name: str, arrow_type: str) -> Column:
    return Column(name, arrow_type, lambda run: [getattr(job, name) for job in run.jobs])


def _of_timeline(name: str, arrow_type: str) -> Column:
    return Column(name, arrow_type, lambda run: np.asarray(getattr(run.timeline, name)).tolist())


RUN_COLUMNS = (*(_of_run(name, "string") for name in ("policy", "workload", "cluster")), _of_run("seed", "int64"))
JOB_COLUMNS = (
    *(_of_job(name, "string") for name in ("id", "application", "user", "queue")),
    Column("state", "string", lambda run: [job.state.value for job in run.jobs]),
    _of_job("size", "int64"),
    *(_of_job(name, "float64") for name in ("submit_s", "first_start_s", "end_s", "wait_s", "jct_s", "gpu_s")),
    *(_of_job(name, "int64") for name in ("restarts", "migrations", "preemptions")),
    *(_of_job(name, "float64") for name in ("lost_gpu_s", "fairness")),
)
TIMELINE_COLUMNS = (
    _of_timeline("time_s", "float64"),
    *(_of_timeline(name, "int64") for name in ("used_gpus", "capacity_gpus", "running", "pending")),
    _of_timeline("fragmentation", "float64"),
)


def write_jobs(path: str | Path, runs: Iterable[RunResult]) -> None:
    """One row per job and run, as JSONL or Parquet by the suffix; what did not happen is null."""
    _write_rows(Path(path), runs, JOB_COLUMNS)


def write_timeline(path: str | Path, runs: Iterable[RunResult]) -> None:
    """One row per change of the cluster and run, as JSONL or Parquet by the suffix."""
    _write_rows(Path(path), runs, TIMELINE_COLUMNS)


def write_text(path: str | Path, text: str) -> None:
    """Write the text in UTF-8, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "replace"))


def check_results_path(path: str | Path) -> None:
    """Raise NotWritable now for what `write_jobs` would refuse after hours of simulation."""
    path = Path(path)
    if path.suffix not in (JSONL, PARQUET):
        raise NotWritable(f"{path}: results are written as {JSONL} or {PARQUET}, not {path.suffix or 'without suffix'}")
    if path.suffix == PARQUET and importlib.util.find_spec("pyarrow") is None:
        raise NotWritable(f"{path}: Parquet needs pyarrow: pip install 'batuta[parquet]', or write {JSONL}")
    check_path(path)


def check_path(path: str | Path) -> None:
    """Raise NotWritable when no file can be made at this place."""
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise NotWritable(f"{path} is a folder")
    existing = next(folder for folder in (place.parent, *place.parents) if folder.exists())
    if not existing.is_dir():
        raise NotWritable(f"{path}: {existing} is not a folder")
    target = place if place.exists() and not place.is_file() else existing
    if not os.access(target, os.W_OK):
        raise NotWritable(f"{path}: no permission to write to {target}")


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that replaces the old one when the block succeeds; after a failure the old one stays."""
    # A link stays a link: what it points to is replaced.
    place = Path(os.path.realpath(path))
    old_mode = place.stat().st_mode if place.exists() else None
    if old_mode is not None and stat.S_ISDIR(old_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if old_mode is not None and not stat.S_ISREG(old_mode):
        # A pipe or /dev/stdout cannot be replaced, and must not be.
        with place.open("wb") as stream:
            yield stream
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name[:100]}.{secrets.token_hex(6)}.tmp")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if old_mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old_mode))
            os.fsync(file.fileno())
        draft.replace(place)
    except BaseException:  # Ctrl-C too
        with suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(place.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename survive a power loss, on file systems that support it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_rows(path: Path, runs: Iterable[RunResult], columns: tuple[Column, ...]) -> None:
    check_results_path(path)
    with atomic_write(path) as file:
        if path.suffix == PARQUET:
            _write_parquet(file, runs, columns)
        else:
            _write_jsonl(file, runs, columns)


def _write_jsonl(file: BinaryIO, runs: Iterable[RunResult], columns: tuple[Column, ...]) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    names = [column.name for column in columns]
    for run in runs:
        same = {column.name: column.values(run)[0] for column in RUN_COLUMNS}
        for row in zip(*(_without_nan(column.values(run)) for column in columns), strict=True):
            line = encode(same | dict(zip(names, row, strict=True)))
            file.write(line.encode("utf-8", "replace") + b"\n")


def _write_parquet(file: BinaryIO, runs: Iterable[RunResult], columns: tuple[Column, ...]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(c.name, pa.type_for_alias(c.arrow_type)) for c in (*RUN_COLUMNS, *columns)])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for run in runs:
            data = {column.name: _without_nan(column.values(run)) for column in columns}
            rows = len(data[columns[0].name])
            same = {column.name: list(column.values(run)) * rows for column in RUN_COLUMNS}
            writer.write_table(pa.table(same | data, schema=schema))


def _without_nan(values: Sequence[Any]) -> list[Any]:
    """JSON has no NaN, and a null is what readers of Parquet leave out of a mean."""
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
