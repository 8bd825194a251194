"""An operator under thousands of UnifiedJobs that come and end: memory, journal and CPU per job, by window.

The whole of `batuta operator` behind its connection to the API server, with a journal in a file: informers'
caches, engine, binder, status writes. Pods end as soon as they run; objects of finished jobs stay in the
cluster, which keeps them in a file. What is printed last are ratios of the last window to the second one: in
the first the operator keeps in mind what it will always keep (1,000 jobs), and loads what it learns with.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.child import in_child
from benchmarks.measure import show, times
from tests.support.kube.offline_cluster import OfflineCluster, leading, run_jobs

JOBS, WINDOWS = 5_000, 5
BAR = 1.1


def windows(jobs: int) -> list[list[float]]:
    """For each window: memory in MiB, journal in MiB and events per job, CPU of the engine in ms per job."""
    found = []
    with tempfile.TemporaryDirectory(prefix="batuta-bench-") as name:
        folder = Path(name)
        cluster = OfflineCluster(folder)
        with leading(cluster, folder / "state") as leader:
            for window in range(WINDOWS):
                seq, cpu_s = leader.store.journal.durable_seq, leader.service.cpu_s
                own = jobs // WINDOWS
                run_jobs(cluster, leader, [f"job-{window}-{k}" for k in range(own)], within_s=3_600.0)
                journal_mib = _size_mib(folder / "state" / "journal.db")
                found.append(
                    [
                        _memory_mib(),
                        journal_mib,
                        (leader.store.journal.durable_seq - seq) / own,
                        1000 * (leader.service.cpu_s - cpu_s) / own,
                    ]
                )
                print(f"  {(window + 1) * own} jobs: {found[-1]}", file=sys.stderr, flush=True)
    return found


def _size_mib(journal: Path) -> float:
    """Of the file, with all that waits in its write-ahead log."""
    with closing(sqlite3.connect(journal)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return journal.stat().st_size / 2**20


def _memory_mib() -> float:
    """Resident memory, once what is free was given back."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    found: list[Any] = in_child("operator_retention.windows", JOBS).answer
    own = JOBS // WINDOWS
    before = 0.0
    rows = []
    for number, (memory, journal, events, cpu_ms) in enumerate(found):
        grown_kib = 1024 * (journal - before) / own
        before = journal
        rows.append([f"{(number + 1) * own:,}", f"{memory:.0f}", f"{grown_kib:.1f}", f"{events:.1f}", f"{cpu_ms:.2f}"])
    second, last = rows[1], rows[-1]
    ratios = [float(b) / float(a) for a, b in zip(second[1:], last[1:], strict=True)]
    notes = [f"the last window to the second: {', '.join(times(ratio, BAR) for ratio in ratios)} (bar: {BAR} ×)"]
    columns = ["jobs that have ended", "MiB", "KiB of journal per job", "events per job", "CPU ms per job"]
    show(f"An operator under {JOBS:,} UnifiedJobs", columns, rows, notes)
