"""Worlds to decide about: many jobs of all kinds on many nodes, the same every time."""

from __future__ import annotations

from enum import Enum

import numpy as np

from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve, amdahl_curve, linear_curve, power_curve
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.event import JobStarted, JobSubmitted, NodeAdded, Planned
from batuta.core.job import Job
from batuta.core.plan import Preempt
from batuta.core.world import World

GPUS_PER_NODE, NODES_PER_RACK = 8, 16


class Mix(Enum):
    """How much the jobs want at least, all together."""

    CROWDED = "crowded"
    """A third more than there is: some wait, hardly anybody grows."""
    ROOMY = "roomy"
    """Six tenths of what there is: all fit, and the rest is shared out."""


def make_jobs(count: int, mix: Mix, seed: int = 1) -> list[Job]:
    """Jobs of sizes 1–8 that may grow up to four times, on concave curves of many shapes."""
    rng = np.random.default_rng(seed)
    jobs = []
    for k in range(count):
        size = int(rng.integers(1, 9))
        largest = size * int(rng.integers(1, 5))
        jobs.append(
            Job(
                id=f"job-{k:05d}",
                submit_s=float(k),
                size=size,
                min=1 if mix is Mix.ROOMY else max(1, size // 2),
                max=largest,
                curve=_curve(rng, largest),
                work_s=float(np.round(rng.lognormal(8.0, 1.5), 3)),
            )
        )
    return jobs


def _curve(rng: np.random.Generator, largest: int) -> SpeedCurve:
    """Amdahl with one of a dozen serial parts, a power law or a straight line: as different as real ones."""
    kind = int(rng.integers(0, 10))
    if kind < 6:
        return amdahl_curve(largest, round(float(rng.integers(1, 13)) / 50, 3))
    if kind < 9:
        return power_curve(largest, round(0.6 + 0.05 * float(rng.integers(0, 7)), 3))
    return linear_curve(largest)


def make_world(jobs: list[Job], nodes: int) -> World:
    """All jobs wait on an empty cluster."""
    world = World()
    for k in range(nodes):
        node = Node(f"n{k:05d}", GPUS_PER_NODE, rack=f"rack-{k // NODES_PER_RACK}")
        apply(world, NodeAdded(0.0, node))
    for job in jobs:
        apply(world, JobSubmitted(job.submit_s, job))
    return world


def carry_out(world: World, now_s: float, rules: SchedulerProfile) -> None:
    """One cycle, and everybody starts at once."""
    plan = decide(world, now_s, rules)
    apply(world, Planned(now_s, plan))
    for command in plan.commands:
        if not isinstance(command, Preempt):
            apply(world, JobStarted(now_s, command.job))
