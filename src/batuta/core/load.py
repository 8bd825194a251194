"""How busy jobs of a name keep a GPU, as it was measured: what is expected of the next one of that name.

Measured is what runs, and what is tried out: a trial run may be over before anybody has reported its GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batuta.core.job import Job

if TYPE_CHECKING:
    from batuta.core.world import World

MOST_NAMES = 1000
_NEWS = 0.3
"""How much a new measurement counts against all before."""


def learn(world: World, job: Job, busy: float) -> None:
    """Takes in how busy a job keeps its busiest GPU."""
    learn_name(world, _name(job), busy)


def learn_name(world: World, name: str, busy: float) -> None:
    """Takes in how busy a job of a name keeps a GPU. Names that nobody used for long are forgotten."""
    if name:
        before = world.loads.pop(name, busy)
        world.loads[name] = before + _NEWS * (busy - before)
        if len(world.loads) > MOST_NAMES:
            del world.loads[next(iter(world.loads))]


def known_load(world: World, job: Job) -> float | None:
    """What a job will probably use of a GPU, from 0 to 1; None where nothing is known of its like."""
    load, share = world.loads.get(_name(job)), job.share
    if load is not None and share is not None and share.compute_percent and not share.soft:
        return min(load, share.compute_percent / 100)
    return load


def expected_load(world: World, job: Job) -> float:
    """The same; 0 where nothing is known."""
    return known_load(world, job) or 0.0


def _name(job: Job) -> str:
    return job.application or job.name
