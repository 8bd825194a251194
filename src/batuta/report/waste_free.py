"""What no job holds at a moment: idle, of no use to who waits, or out of service."""

from __future__ import annotations

from collections.abc import Iterator

from batuta.core.job import Job
from batuta.core.job_table import Phase
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.report.waste import Left


def count_left(world: World) -> Left:
    """Numbers of GPUs, in the fields of GPU-seconds."""
    nodes, layout = world.nodes, world.layout
    found = Left()
    free_by_type: dict[int, list[int]] = {}
    for i, node in enumerate(nodes.nodes):
        if world.lost >> i & 1:
            continue
        found.capacity_gpu_s += node.gpus
        if layout.usable >> i & 1 and layout.free[i]:
            free_by_type.setdefault(nodes.type_of[i], []).append(layout.free[i].bit_count())
    waiting = list(_waiting(world)) if free_by_type else []
    for kind, free in free_by_type.items():
        fragmented = _fragmented(free, _smallest(waiting, nodes.types[kind]))
        found.fragmented_gpu_s += fragmented
        found.idle_gpu_s += sum(free) - fragmented
    held = _held_gpus(world)
    found.unavailable_gpu_s = found.capacity_gpu_s - held - found.idle_gpu_s - found.fragmented_gpu_s
    return found


def _held_gpus(world: World) -> int:
    """GPUs that jobs have; a card that several share is one."""
    shares = sum(card.shares - 1 for card in world.layout.cards.values())
    return int(world.jobs.i("gpus").sum()) - shares


def _waiting(world: World) -> Iterator[Job]:
    """Jobs that would run if they were given GPUs."""
    jobs = world.jobs
    for row in (jobs.i("gpus") == 0).nonzero()[0].tolist():
        if jobs.wish_of(row) is Wish.RUN and jobs.phase_of(row) is Phase.WAITING:
            yield jobs.jobs[row]


def _smallest(waiting: list[Job], gpu_type: str) -> Job | None:
    """The one that needs the least of those that accept a type; a share needs less than a GPU."""
    fitting = (job for job in waiting if not job.gpu_types or gpu_type in dict(job.gpu_types))
    return min(fitting, key=lambda job: (job.min, job.gpus_per_replica), default=None)


def _fragmented(free: list[int], job: Job | None) -> int:
    """How many of the free GPUs, node by node, a job could not use for its smallest size."""
    if job is None:
        return 0
    each = job.gpus_per_replica
    useful = sum(own - own % each for own in free)
    return sum(free) - useful if useful >= job.min else sum(free)
