"""One full cycle for jobs that each take a part of a card, no two alike, at 500 and at 5,000 of them.

The bar is that of whole GPUs: ten times the jobs and nodes cost at most 15 times as much.
"""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np

from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.decide import decide
from batuta.core.event import JobSubmitted, NodeAdded
from batuta.core.job import Job, Share
from batuta.core.world import World
from batuta.engine.profile import profile_for
from benchmarks.measure import in_turns_cpu_s, ratio_of, show, times

SCALES = ((500, 60), (5_000, 600))
"""Jobs and nodes."""
GROWTH_BAR = 15.0
POLICIES = ("fifo", "elastic-srjf", "tiresias")


def make_world(jobs: int, nodes: int, seed: int = 1) -> World:
    """All jobs wait on an empty cluster of two types of GPUs, with cards of two sizes."""
    rng = np.random.default_rng(seed)
    world = World()
    for k in range(nodes):
        kind, memory_mib = "ab"[k % 3 == 0], 80_000 if k % 2 else 40_000
        apply(world, NodeAdded(0.0, Node(f"n{k:05d}", 8, gpu_type=kind, gpu_memory_mib=memory_mib)))
    for k in range(jobs):
        share = Share(int(rng.integers(500, 20_000)), int(rng.integers(1, 70)))
        job = Job(f"job-{k:05d}", float(k), share=share, work_s=float(rng.lognormal(8.0, 1.5)))
        apply(world, JobSubmitted(job.submit_s, job))
    return world


def main() -> None:
    worlds = [make_world(jobs, nodes) for jobs, nodes in SCALES]
    rows = []
    for policy in POLICIES:
        rules = profile_for(policy)
        works = [partial(decide, world, float(world.jobs.n), rules) for world in worlds]
        small, large = in_turns_cpu_s(works)
        full_ms = [f"{statistics.median(spent) * 1e3:.0f}" for spent in (small, large)]
        rows.append((policy, *full_ms, times(ratio_of(large, small), GROWTH_BAR)))
    columns = ("policy", *(f"full, {jobs:,} (ms)" for jobs, _ in SCALES), "growth")
    show(f"shares: {SCALES[1][0]:,} jobs on {SCALES[1][1]:,} nodes", columns, rows)


if __name__ == "__main__":
    main()
