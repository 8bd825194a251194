"""How a total batch size is split into local batches and accumulation steps."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.goodput.profiles import AppProfile

SLACK = 1e-8
"""Taken off before every ceiling, so that 4.000000001 is not 5."""

CANDIDATES = 50
"""Batch sizes that tuning looks at, in geometric steps."""


class BatchSplit(NamedTuple):
    """Each replica runs `accumulation + 1` passes of `local` samples in an iteration."""

    local: int
    accumulation: int

    def total(self, gpus: int) -> int:
        return gpus * self.local * (self.accumulation + 1)


def split_fixed(profile: AppProfile, batch: int, gpus: int) -> BatchSplit:
    """The split of a batch size that the user fixed; the total may differ a little from what was asked."""
    # One pass on one GPU gives a single gradient, and no variance to scale the learning rate by.
    least = 1 if gpus == 1 and batch > profile.init_batch else 0
    return _split(profile, batch, gpus, least)


def split_planned(profile: AppProfile, batch: int, gpus: int) -> BatchSplit:
    """The split that Optimus plans with: one GPU always accumulates, also at the smallest batch size."""
    return _split(profile, batch, gpus, 1 if gpus == 1 else 0)


def candidate_splits(profile: AppProfile, gpus: int) -> list[BatchSplit]:
    """Splits of 50 geometric batch sizes from the smallest possible to the largest validated one."""
    smallest = max(profile.init_batch, profile.min_local * gpus)
    if smallest > profile.max_batch:
        return []
    splits: dict[BatchSplit, None] = {}
    for batch in np.geomspace(smallest, profile.max_batch, CANDIDATES).tolist():
        local = batch / gpus
        accumulation = math.ceil(local / profile.max_local - SLACK) - 1
        if gpus == 1 and local > profile.init_batch + SLACK:
            accumulation = max(1, accumulation)
        split = _cap(profile, gpus, math.ceil(local / (accumulation + 1) - SLACK), accumulation)
        if profile.min_local <= split.local <= profile.max_local and split.total(gpus) >= profile.init_batch:
            splits[split] = None
    return list(splits)


def _split(profile: AppProfile, batch: int, gpus: int, least: int) -> BatchSplit:
    share = math.ceil(batch / gpus - SLACK)
    accumulation = max(math.ceil(share / profile.max_local - SLACK) - 1, least)
    return _cap(profile, gpus, math.ceil(share / (accumulation + 1) - SLACK), accumulation)


def _cap(profile: AppProfile, gpus: int, local: int, accumulation: int) -> BatchSplit:
    # Rounding up must not lead beyond the largest validated batch, where no statistics exist.
    return BatchSplit(min(local, profile.max_batch // (gpus * (accumulation + 1))), accumulation)
