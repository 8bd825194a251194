"""A job's reports over time, thinned: from the file that its script writes, and not all of a long one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from batuta.spec.progress import ProgressReport, parse_line

MOST_BYTES = 4 << 20
"""A longer file is read in places only."""
_BLOCK_BYTES = 8 << 10
_WINDOW = 5
"""Reports over which speed is measured."""


def read_curve(path: Path, points: int) -> list[dict[str, Any]]:
    """At most so many points, in the order of the file; the first and the last one are among them."""
    reports = [
        report
        for part in (path.with_name(path.name + ".1"), path)
        for report in _reports(part)
        if not report.is_checkpoint
    ]
    one = _one_rank(reports)
    chosen = thin(range(len(one)), points)
    return [_point(one, k) for k in chosen]


def thin(numbers: Sequence[int], points: int) -> list[int]:
    """Evenly spread ones of a sequence."""
    count = len(numbers)
    if count <= points:
        return list(numbers)
    if points == 1:
        return [numbers[-1]]
    return [numbers[round(k * (count - 1) / (points - 1))] for k in range(points)]


def _one_rank(reports: list[ProgressReport]) -> list[ProgressReport]:
    """All ranks do the same steps: one is enough, the lowest that reports."""
    rank = min((report.rank or 0 for report in reports), default=0)
    return [report for report in reports if (report.rank or 0) == rank]


def _reports(path: Path) -> Iterator[ProgressReport]:
    for line in _lines(path):
        report = parse_line(line)
        if report is not None:
            yield report


def _lines(path: Path) -> Iterator[bytes]:
    try:
        # A job may put anything in its place: a FIFO would wait for a writer.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        found = os.fstat(file)
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            return
        if size <= MOST_BYTES:
            yield from os.pread(file, size, 0).splitlines()
            return
        blocks = MOST_BYTES // _BLOCK_BYTES
        for k in range(blocks):
            begin = k * (size - _BLOCK_BYTES) // (blocks - 1)
            lines = os.pread(file, _BLOCK_BYTES, begin).split(b"\n")
            # Cut off on both sides, but at the ends of the file.
            yield from lines[0 if begin == 0 else 1 : None if k == blocks - 1 else -1]
    finally:
        os.close(file)


def _point(reports: list[ProgressReport], k: int) -> dict[str, Any]:
    report = reports[k]
    return {
        "time_s": report.time_s,
        "step": report.step,
        "epoch": report.epoch,
        "loss": report.loss,
        "samples_per_s": _speed(reports[max(0, k - _WINDOW) : k + 1]),
        "metrics": dict(report.metrics),
    }


def _speed(window: list[ProgressReport]) -> float | None:
    """Samples a second over the last reports of the same run; both count on across restarts."""
    last = window[-1]
    if last.samples is None or last.time_s is None:
        return None
    for first in window[:-1]:
        if first.restart != last.restart or first.samples is None or first.time_s is None:
            continue
        if last.time_s > first.time_s and last.samples >= first.samples:
            return (last.samples - first.samples) / (last.time_s - first.time_s)
    return None
