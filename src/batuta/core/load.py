"""How busy jobs of a name keep a GPU, as it was measured: what is expected of the next one of that name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batuta.core.job import Job

if TYPE_CHECKING:
    from batuta.core.world import World

MOST_NAMES = 1000
_NEWS = 0.3
"""How much a new measurement counts against all before."""


def learn(world: World, job: Job, busy: float) -> None:
    """Takes in how busy a job keeps its busiest GPU. Names that nobody used for long are forgotten."""
    name = job.application or job.name
    if name:
        before = world.loads.pop(name, busy)
        world.loads[name] = before + _NEWS * (busy - before)
        if len(world.loads) > MOST_NAMES:
            del world.loads[next(iter(world.loads))]


def expected_load(world: World, job: Job) -> float:
    """What a job will probably use of a GPU, from 0 to 1; 0 where nothing is known of its like."""
    load = world.loads.get(job.application or job.name, 0.0)
    share = job.share
    if share is not None and share.compute_percent and not share.soft:
        return min(load, share.compute_percent / 100)
    return load
