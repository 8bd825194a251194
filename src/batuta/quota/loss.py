"""What it would cost to push a job aside, and when it will have ended by itself."""

from __future__ import annotations

import math

import numpy as np

from batuta.core.arrays import FloatArray
from batuta.core.weigh import lost_work_s
from batuta.core.world import World


def lost_gpu_s(world: World, row: int, now_s: float) -> float:
    """GPU seconds that are lost if a job has to stop: work since its last checkpoint, and the restart."""
    jobs = world.jobs
    gpus = int(jobs.held[row])  # replicas of a CPU-only job: its seconds are weighed alike
    curve = jobs.jobs[row].curve
    speed = curve.at(gpus) or 1.0
    return gpus * (lost_work_s(world, row, now_s) / speed + float(jobs.restart_s[row]))


def predicted_ends_s(world: World, now_s: float) -> FloatArray:
    """When each job would end if it had its `min` from now on, by what is known of its work."""
    jobs = world.jobs
    left_s = np.maximum(jobs.remaining_s - jobs.rate * (now_s - jobs.anchor_s), 0.0)
    speed = jobs.speed().at(jobs.min)
    starts_s = np.where(jobs.held > 0, 0.0, jobs.restart_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends_s: FloatArray = np.where(speed > 0, now_s + starts_s + left_s / speed, math.inf)
    return ends_s
