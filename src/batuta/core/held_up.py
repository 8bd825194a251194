"""What it changes that some nodes hold a job up: the job is not placed there for a while."""

from __future__ import annotations

from typing import Final

from batuta.core.event import JobHeldUp
from batuta.core.world import Avoided, World

CAUSE: Final = "held-up"
"""Of what is done about it."""


def note(world: World, event: JobHeldUp) -> None:
    """Adds the nodes to those that the job avoids. One that is changed or replaced is asked again sooner."""
    index = world.nodes.index
    nodes = sum(1 << index[name] for name in set(event.avoid) if name in index)
    if nodes and event.job in world.jobs:
        before = world.avoided.get(event.job, Avoided(0, 0.0))
        world.avoided[event.job] = Avoided(nodes | before.nodes, max(before.until_s, event.until_s))
