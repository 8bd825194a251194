"""How many GPUs a job's wishes leave to it: on the open nodes, as if it were alone there.

A policy counts GPUs and knows nothing of labels, racks or CPU. Without this, a job with a label that no node
has would be given GPUs that it can never use, cycle after cycle, and the jobs behind it would wait for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from batuta.core.arrays import IntArray
from batuta.core.cluster import Node
from batuta.core.job import Job, Spread
from batuta.core.layout import bits

if TYPE_CHECKING:
    from batuta.core.world import World


class Wishes(NamedTuple):
    """What a job wants of nodes beside GPUs. Jobs with equal wishes can have equally many."""

    node_labels: tuple[tuple[str, str], ...]
    tolerations: tuple[str, ...]
    gpus_per_replica: int
    cpus_milli_per_gpu: int
    memory_mib_per_gpu: int
    within: Spread
    single_numa: bool
    share_mib: int


def wishes_of(job: Job) -> Wishes:
    topology = job.topology
    return Wishes(
        job.node_labels,
        job.tolerations,
        job.gpus_per_replica,
        job.cpus_milli_per_gpu,
        job.memory_mib_per_gpu,
        topology.within if topology.required else Spread.ANY,
        topology.single_numa,
        job.share.memory_mib if job.share is not None else 0,
    )


def most_gpus(world: World, job: Job) -> list[int]:
    """By GPU type: the most GPUs that the job could have on the open nodes."""
    table, layout, wishes = world.nodes, world.layout, wishes_of(job)
    total = [0] * len(table.types)
    by_rack: Counter[tuple[int, str]] = Counter()
    for i, nodes in _alike(world, layout.usable & table.matching(job)):
        kind, one = table.type_of[i], _on_node(table.nodes[i], layout.healthy[i], wishes)
        if wishes.within is Spread.NODE:
            total[kind] = max(total[kind], one)
        elif wishes.within is Spread.RACK:
            for rack, there in table.by_rack.items():
                by_rack[kind, rack] += one * (nodes & there).bit_count()
        else:
            total[kind] += one * nodes.bit_count()
    for (kind, _), gpus in by_rack.items():
        total[kind] = max(total[kind], gpus)
    return total


def within_reach(
    world: World, cap: IntArray | None, gpu_type: IntArray | None
) -> tuple[IntArray | None, dict[int, int]]:
    """Lowers the caps of jobs that want more than the open nodes could give to them; what they have stays.

    The second part says by row how much that is, of the types that the rows compete for (None: the only one).
    """
    jobs, reach = world.jobs, dict[int, int]()
    if not jobs.narrow:
        return cap, reach
    cap = (jobs.i("max") if cap is None else cap).copy()
    for row in np.flatnonzero(jobs.i("narrow")).tolist():
        kind = 0 if gpu_type is None else int(gpu_type[row])
        if kind >= 0:
            reach[row] = world.reach[wishes_of(jobs.jobs[row])][kind]
            cap[row] = min(cap[row], max(reach[row], jobs.i("gpus")[row]))
    return cap, reach


def _alike(world: World, nodes: int) -> Iterator[tuple[int, int]]:
    """The nodes in groups that differ in name and rack only, each with one of them; ill ones stand alone."""
    ill = 0
    for i in world.ill:
        if nodes >> i & 1:
            ill |= 1 << i
            yield i, 1 << i
    for model in world.nodes.models.values():
        alike = model & nodes & ~ill
        if alike:
            yield (alike & -alike).bit_length() - 1, alike


def _on_node(node: Node, healthy: int, wishes: Wishes) -> int:
    """Whole replicas only, on one NUMA node if it wants that."""
    if node.gpu_memory_mib < wishes.share_mib:
        return 0
    most = healthy.bit_count()
    if wishes.single_numa and node.numa:
        most = max(Counter(node.numa[gpu] for gpu in bits(healthy)).values(), default=0)
    if wishes.cpus_milli_per_gpu and node.cpus_milli:
        most = min(most, node.cpus_milli // wishes.cpus_milli_per_gpu)
    if wishes.memory_mib_per_gpu and node.memory_mib:
        most = min(most, node.memory_mib // wishes.memory_mib_per_gpu)
    return most - most % wishes.gpus_per_replica
