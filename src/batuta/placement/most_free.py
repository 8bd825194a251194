"""The placer of the baselines that Pollux was compared with: GPUs from the node with the most free ones.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI '21).
No moves and no topology; it exists so that published averages come out to the digit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId
from batuta.core.job_table import Phase
from batuta.core.placer import EVERYWHERE, Failure, Placed, Target
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement.attempt import PlacerOptions, why
from batuta.placement.cluster_state import ClusterState, Part
from batuta.placement.placer import place_new

BROKEN = int(Phase.BROKEN)


@dataclass(frozen=True, slots=True)
class MostFreePlacer:
    """Releases the jobs whose count changes, then places them: as given or, `by_size`, the smallest first."""

    by_size: bool = False
    options: PlacerOptions = field(default_factory=PlacerOptions)

    def place(
        self,
        world: World,
        now_s: float,
        targets: Sequence[Target],
        costs: Costs,
        within: Mapping[JobId, int] = EVERYWHERE,
    ) -> Placed:
        order = sorted(targets, key=attrgetter("gpus") if self.by_size else _entry(world))
        stays: set[int] = set()
        while True:
            placed = _place_all(world, order, stays, self.options.room(world, within))
            # A running job that found nothing keeps what it has: that must not be given to others then. One that
            # lost GPUs cannot: it is preempted.
            holds, phase = world.jobs.placements, world.jobs.phase
            stuck = {row for row in placed.failures if holds[row] is not None and phase[row] != BROKEN} - stays
            if not stuck:
                return placed
            stays |= stuck


def _entry(world: World) -> Callable[[Target], tuple[int, float]]:
    """By queue level, and in the lower ones by when a job entered it; else in the order given."""
    tier, since_s = world.jobs.tier, world.jobs.tier_since_s

    def key(target: Target) -> tuple[int, float]:
        level = int(tier[target.row])
        return level, float(since_s[target.row]) if level else 0.0

    return key


def _place_all(world: World, order: Sequence[Target], stays: set[int], room: ClusterState) -> Placed:
    jobs = world.jobs
    placements: dict[int, Placement] = {}
    failures: dict[int, Failure] = {}
    for target in order:
        held = jobs.placements[target.row]
        if held is not None and target.row not in stays:
            room.vacate(held, jobs.jobs[target.row])
    for target in order:
        job = jobs.jobs[target.row]
        if not target.gpus:
            continue
        stuck = target.row in stays
        found = None if stuck else place_new(room, job, target.gpus, target.gpu_type, _emptiest_first)
        if found is None:
            kept = int(jobs.held[target.row]) if stuck else 0
            failures[target.row] = why(room, job, target.gpus, target.gpu_type, kept)
        else:
            placements[target.row] = found
    return Placed(placements, failures, {}, room.layout)


def _emptiest_first(room: ClusterState, job: Job, gpus: int, nodes: int) -> list[Part] | None:
    """As many GPUs as there are on the node with the most free ones, the lowest number on ties, and so on."""
    levels, step = [level & nodes for level in room.layout.buckets], job.gpus_per_replica
    parts: list[Part] = []
    for k in range(len(levels) - 1, 0, -1):
        while levels[k] and gpus:
            low = levels[k] & -levels[k]
            i = low.bit_length() - 1
            levels[k] ^= low
            capacity = room.capacity(i, job)
            if capacity < k - k % step:
                # It lacks CPU or memory beside its GPUs, and comes up again where it belongs.
                levels[capacity] |= low
                continue
            count = min(capacity, gpus)
            parts.append((i, count))
            gpus -= count
    return None if gpus else parts
