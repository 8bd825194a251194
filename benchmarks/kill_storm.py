"""200 kill -9 of a real server with real jobs, on a machine that fails around it: what is lost, doubled or left over.

Half of the server's lives are short of descriptors, in a third the disk of the state directory is full, in a fifth the
wall clock jumps by up to a month. Bar: nothing lost, nothing doubled, no process left over; docs/benchmarks.md says
what else counts as wrong. BATUTA_KILLS sets how often it is killed, BATUTA_SEED another course. Needs root, control
groups of version 1, unshare and cc.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.measure import show
from tests.support.kill_storm import run_storm

KILLS = int(os.environ.get("BATUTA_KILLS", "200"))
SEED = int(os.environ.get("BATUTA_SEED", "20"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batuta-storm-", ignore_cleanup_errors=True) as folder:
        storm = run_storm(SEED, KILLS, Path(folder))
    faults = ", ".join(f"{count} with {fault}" for fault, count in sorted(storm.faults.items()))
    ended = ", ".join(f"{count} {state}" for state, count in storm.ended.items())
    show(
        f"{storm.kills} kills (seed {SEED}) in {storm.took_s:.0f} s: {faults}",
        ("jobs", "ended", "requests sent again", "starts given up", "wrong"),
        [(storm.jobs, ended, storm.repeats, storm.gave_up, f"{len(storm.wrong)}{' !' if storm.wrong else ''}")],
        storm.wrong,
    )
