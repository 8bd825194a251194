"""Pollux-like: sizes that make the power mean of all jobs' speed-ups over their fair share high.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI '21, section
4.2: SPEEDUP relative to the goodput on a fair share, power mean with p = −1, and the penalty for restarts.
"Like", because the paper searches placements with a genetic algorithm and this chooses sizes by a dynamic
programme, which finds the best sum, and leaves places to the placer; so no chance is involved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from batuta.core.arrays import FloatArray, IntArray
from batuta.core.policy import PlacerKind, PolicyTraits, ReplayTraits
from batuta.core.view import PoolView
from batuta.policies.type_choice import best_choice, list_type_options, one_type, restart_factor

_NOTHING = 1e-3  # added to every speed-up, so that a job without GPUs counts as very slow and not as infinitely slow


@dataclass(frozen=True, slots=True)
class Pollux:
    """Maximises the power mean with p = −1, that is, minimises the sum of 1 / speed-up."""

    name: str = "pollux"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        placer=PlacerKind.WHOLE_NODES,
        weighs=True,
        replay=ReplayTraits("own", adapts_batch=True, every_size=True, explores=(1, 2, 0.01, 1.1)),
    )
    """A job starts on one GPU and may have double the most that it was measured on. Until it was measured
    there, communication counts as a hundredth of the time, and as a tenth more across nodes."""

    def allocate(self, view: PoolView) -> IntArray:
        typed = one_type(view)
        options = list_type_options(typed)
        share = 1 / max(view.node_gpus, 1)
        factor = np.where(options.held(typed), 1.0, restart_factor(view)[options.row])
        speedup = share * options.speed / _fair_speed(view)[options.row] * factor + _NOTHING
        return best_choice(options, 1 / _NOTHING - 1 / speedup, typed.capacity, len(view)).gpus


def _fair_speed(view: PoolView) -> FloatArray:
    """The speed with an equal share of the GPUs, rounded up."""
    share = -(-view.capacity // max(len(view), 1))
    speed = view.speed.at(np.full(len(view), share, dtype=np.int64))
    # A size for which nothing is known: as if it scaled perfectly from one GPU.
    return np.where(speed > 0, speed, float(max(share, 1)))
