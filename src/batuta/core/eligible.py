"""Whom the policy is asked about, and who keeps what it has whatever the policy says."""

from __future__ import annotations

import numpy as np

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.job import NO_RESTART_S
from batuta.core.job_table import JobTable, Phase
from batuta.core.withhold import left_alone, withheld
from batuta.core.world import World


def who_may_change(
    world: World, now_s: float, cap: IntArray | None, freeze: bool
) -> tuple[BoolArray | None, BoolArray | None]:
    """Rows that keep what they have, and rows that the policy is asked about; None for none, and for all."""
    jobs = world.jobs
    fixed = jobs.in_motion() if freeze else None
    unmoved = _cannot_be_stopped(world, cap)
    if unmoved is not None:
        fixed = unmoved if fixed is None else fixed | unmoved
    if jobs.held_back:
        alone = left_alone(jobs, now_s)
        # Whoever is cancelled does not have to finish its start first.
        fixed = alone if fixed is None else fixed & ~withheld(jobs, now_s) | alone
    if cap is None:
        return fixed, None if fixed is None else ~fixed
    # Below its `min` a job has no legal size, and policies rely on `min`.
    admissible = cap >= jobs.i("min")
    return fixed, admissible if fixed is None else ~fixed & admissible


def _cannot_be_stopped(world: World, cap: IntArray | None) -> BoolArray | None:
    """Rows that run, may have what they have, and would lose all they have done by a stop; None for none."""
    jobs = world.jobs
    lasting: BoolArray = jobs.f("restart_s") >= NO_RESTART_S
    gpus = jobs.i("gpus")
    runs: BoolArray = (gpus > 0) & (jobs.i("phase") == Phase.RUNNING)
    lasting &= runs
    if jobs.unsaved:
        lasting[_unsaved(jobs, runs & ~lasting)] = True
    if not lasting.any():
        return None
    if cap is not None:
        lasting &= cap >= gpus
    return lasting if lasting.any() else None


def _unsaved(jobs: JobTable, among: BoolArray) -> list[int]:
    """The rows of these that a stop would cost all that they have done; who is fewer is gone through."""
    rows = np.flatnonzero(among)
    if len(rows) <= len(jobs.unsaved):
        return [row for row in rows.tolist() if jobs.ids[row] in jobs.unsaved]
    return [row for row in map(jobs.row, jobs.unsaved) if among[row]]


def kept(world: World, fixed: BoolArray | None) -> IntArray:
    """What the rows have that keep it; nothing for the others."""
    jobs = world.jobs
    return np.zeros(jobs.n, dtype=np.int64) if fixed is None else np.where(fixed, jobs.i("gpus"), 0)
