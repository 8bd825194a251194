"""How long a training step takes: compute, communication within and across nodes, and their overlap.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI '21, section
3.2. A pass over `batch` samples on one GPU takes α_c + β_c·batch. Synchronising n > 1 GPUs takes
α + β·(n − 2), with one pair (α, β) within a node and one across nodes. The two overlap: a step takes
(pass^γ + sync^γ)^(1/γ), from their sum (γ = 1) to the longer of them (γ = 10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batuta.core.arrays import BoolArray, FloatArray

PARAMETERS = 7
"""In logs: α_c, β_c, α and β across nodes, α and β within a node; then the overlap, see `_overlap`."""
MOST_OVERLAP = 9.0
"""γ lies between 1 and 1 + this."""
_LOG_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a step time depends on. Arrays of one shape; the last axis counts points."""

    gpus: FloatArray
    batch: FloatArray
    """Samples of one pass on one GPU; a relative number will do, if it is always the same one."""
    wide: BoolArray
    """Whether the GPUs lie on more than one node."""


def log_times(
    parameters: FloatArray, shapes: Shapes, slower: FloatArray | float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Logs of the seconds of a pass and of a step. Parameters broadcast over the points: (…, 1, 7).

    `slower` is by how much a pass is known to take longer than by its form, in logs.
    """
    forward = _Forward(parameters, shapes, slower)
    return forward.log_pass, forward.log_step


def log_times_and_slopes(
    parameters: FloatArray, shapes: Shapes
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The same, and their derivatives by the seven parameters in a new last axis."""
    forward = _Forward(parameters, shapes)
    return forward.log_pass, forward.log_step, *forward.slopes(parameters)


class _Forward:
    """One evaluation of the form, with what its derivatives need."""

    def __init__(self, parameters: FloatArray, shapes: Shapes, slower: FloatArray | float = 0.0) -> None:
        logs = np.clip(parameters, -_LOG_LIMIT, _LOG_LIMIT)
        level = np.exp(logs[..., :6])
        fixed, by_batch = level[..., 0], level[..., 1] * shapes.batch
        wide = shapes.wide
        base = np.where(wide, level[..., 2], level[..., 4])
        by_gpu = np.where(wide, level[..., 3], level[..., 5]) * np.maximum(shapes.gpus - 2.0, 0.0)
        alone = shapes.gpus <= 1
        self.wide, self.alone = wide, alone
        self.log_pass = np.log(fixed + by_batch) + slower
        self.fixed_share = fixed / (fixed + by_batch)
        self.base_share = base / (base + by_gpu)
        self.log_sync = np.log(base + by_gpu)
        self.overlap = _overlap(parameters[..., 6])
        # exp(γ·(sync − pass)): how much more the one counts than the other.
        with np.errstate(over="ignore"):
            odds = np.exp(np.clip(self.overlap * (self.log_sync - self.log_pass), -500.0, 500.0))
        self.pass_share = np.where(alone, 1.0, 1.0 / (1.0 + odds))
        self.excess = np.where(alone, 0.0, np.log1p(odds) / self.overlap)
        self.log_step = self.log_pass + self.excess

    def slopes(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        shape = (*self.log_pass.shape, PARAMETERS)
        of_pass, of_step = np.zeros(shape), np.zeros(shape)
        of_pass[..., 0] = self.fixed_share
        of_pass[..., 1] = 1.0 - self.fixed_share
        share = self.pass_share
        of_step[..., 0] = share * self.fixed_share
        of_step[..., 1] = share * (1.0 - self.fixed_share)
        sync = 1.0 - share
        of_step[..., 2] = np.where(self.wide, sync * self.base_share, 0.0)
        of_step[..., 3] = np.where(self.wide, sync * (1.0 - self.base_share), 0.0)
        of_step[..., 4] = np.where(self.wide, 0.0, sync * self.base_share)
        of_step[..., 5] = np.where(self.wide, 0.0, sync * (1.0 - self.base_share))
        by_overlap = (sync * (self.log_sync - self.log_pass) - self.excess) / self.overlap
        part = (self.overlap - 1.0) / MOST_OVERLAP
        by_logit = by_overlap * MOST_OVERLAP * part * (1.0 - part)
        of_step[..., 6] = np.where(self.alone, 0.0, by_logit)
        return of_pass, of_step


def _overlap(logit: FloatArray) -> FloatArray:
    """γ from its parameter."""
    gamma: NDArray[np.float64] = 1.0 + MOST_OVERLAP / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0)))
    return gamma
