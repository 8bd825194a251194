"""What a policy sees: a frozen view of the jobs that compete for one GPU type, or for all types at once.

`PoolView` is for a policy that divides the GPUs of one type. `TypedView` is for a policy that also chooses
the type: it has every job once, and what the job could have of each type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from batuta.core.arrays import BoolArray, FloatArray, IntArray
from batuta.core.curve import Curves, LegalSizes
from batuta.core.job import JobId
from batuta.core.phases import SharedOutlook


@dataclass(frozen=True, slots=True)
class PoolView:
    """Jobs in the order (submit time, id), one column per fact; row i of every column is the same job.

    The order is part of the promise: a stable sort by any other column breaks its ties by (submit, id).
    """

    now_s: float
    capacity: int  # GPUs of this type that jobs may have now, those that they already have included
    ids: Sequence[JobId]
    submit_s: FloatArray
    first_start_s: FloatArray  # NaN for a job that never ran
    tier: IntArray  # queue level of Tiresias; 0 is the best
    tier_since_s: FloatArray
    size: IntArray
    min: IntArray
    max: IntArray
    sizes: LegalSizes
    remaining_s: FloatArray  # predicted run time that is left, on one GPU of this type
    speed: Curves  # speed with n GPUs relative to one
    gpus: IntArray  # GPUs that the job has now
    attained_gpu_s: FloatArray  # GPU-seconds since its submission
    service_gpu_s: FloatArray  # GPU-seconds since its last start
    last_start_s: FloatArray  # NaN for a job that never ran
    last_stop_s: FloatArray  # when it last lost all its GPUs; NaN for never
    last_resize_s: FloatArray  # NaN for never
    restart_s: FloatArray
    priority: IntArray
    restart_left_s: FloatArray | None = None
    """Seconds until a job that was just started or resized makes progress; None where no job is."""
    node_gpus: int = 0  # GPUs of the usual node of this type; 0 where that is not known
    restarts: IntArray | None = None  # starts, resizes and moves after the first start; None where that is not known
    done_s: FloatArray | None = None
    """Work done since the submission, in the same seconds as what is left, whatever was lost or estimated
    anew since; None where that is not known."""
    crowd: FloatArray | None = None
    """Living jobs on average since its submission, over those of now; None where that is not known."""
    held: BoolArray | None = None
    """Jobs that were changed lately: they keep what they have, unless another that fits at its `min` would
    wait. None for none."""
    outlooks: tuple[SharedOutlook, ...] = ()
    """How speeds will change, of the jobs where that is known; for others `speed` holds until the end."""

    def __len__(self) -> int:
        return len(self.ids)

    def in_tiers(self, tier: IntArray, tier_since_s: FloatArray) -> PoolView:
        """The same jobs in other queue levels."""
        return replace(self, tier=tier, tier_since_s=tier_since_s)


class Choice(NamedTuple):
    """The answer: so many GPUs of one type for every row. Without GPUs the type does not matter."""

    gpus: IntArray
    gpu_type: IntArray


@dataclass(frozen=True, slots=True)
class TypedView:
    """Jobs and GPU types. A table has a row for each job of `jobs` and a column for each type of `types`.

    With n GPUs of type t a job needs `jobs.remaining_s / (speed[row, t] * jobs.speed(n))` more seconds.
    """

    jobs: PoolView
    """All types together: its capacity is their sum, `max` and `sizes` hold for the type that has most for a
    row, and `remaining_s` is on one GPU of the reference type, whose relative speed is 1."""
    types: tuple[str, ...]
    capacity: IntArray  # by type: GPUs that jobs may have now, those that they already have included
    speed: FloatArray
    """Speed of one GPU of a type relative to the reference type; 0 where the job may have none of it, for
    whatever reason: it does not accept the type, quota is for another one, no node of it suits."""
    most: IntArray  # the largest legal size of each type, at least `min` where `speed` is above 0, and 0 elsewhere
    gpu_type: IntArray  # the type of the GPUs that a job has now; -1 for none
    node_gpus: tuple[int, ...]  # by type: GPUs of its usual node

    def __len__(self) -> int:
        return len(self.gpu_type)
