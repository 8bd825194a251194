"""How long a job may still take: what is believed of the work that is left, and draws from that."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.prediction.duration import LEVELS, Quantiles

Lengths: TypeAlias = Callable[[World, JobId], Quantiles]
"""What is believed of the work that a living job has left."""


def exact(world: World, job: JobId) -> Quantiles:
    """Believes the World to the second."""
    return exactly(believed_left_s(world, world.jobs.row(job)))


def exactly(left_s: float) -> Quantiles:
    return Quantiles((left_s,) * len(LEVELS))


def believed_left_s(world: World, row: int) -> float:
    """What the World believes is left now."""
    jobs = world.jobs
    passed_s = max(world.now_s - float(jobs.f("anchor_s")[row]), 0.0)
    return max(float(jobs.f("remaining_s")[row]) - float(jobs.f("rate")[row]) * passed_s, 0.0)


class Draws:
    """The luck of every job in every run. It depends on the seed and the job's id alone.

    So a question that is asked again is answered again the same, and what differs between two futures is not
    luck. Each job gets each part of its distribution once (a Latin hypercube): few runs go a long way.
    """

    def __init__(self, runs: int, seed: int = 0) -> None:
        if runs < 1:
            raise ValueError(f"runs must be at least 1, found {runs}")
        self.runs, self.seed = runs, seed
        self._levels = [(run + 0.5) / runs for run in range(runs)]

    def left_s(self, known: Mapping[JobId, Quantiles]) -> dict[JobId, FloatArray]:
        """By job: its work in each run."""
        found = {}
        for job, own in known.items():
            if own.p10_s == own.p90_s or self.runs == 1:
                found[job] = np.full(self.runs, own.p50_s)
            else:
                drawn = np.array([own.at(level) for level in self._levels])
                found[job] = drawn[self.chance(job).permutation(self.runs)]
        return found

    def chance(self, name: str) -> np.random.Generator:
        """Randomness of its own for whatever has this name."""
        return np.random.default_rng((self.seed, zlib.crc32(name.encode("utf-8", "surrogatepass"))))


def quantile(values: Sequence[float] | FloatArray, share: float) -> float:
    """Between the two values beside it (Hazen: value k of n stands for (k - ½)/n); infinity is a value."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    low, high = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    return low if low == high else low + (high - low) * (place - math.floor(place))
