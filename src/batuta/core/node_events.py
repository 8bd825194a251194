"""What events about nodes and their GPUs change."""

from __future__ import annotations

from collections.abc import Callable

from batuta.core import event as ev
from batuta.core.arrays import mask_of
from batuta.core.cluster import Node
from batuta.core.holdings import lose, lose_node, type_of, without
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.utilisation import Usage, note_use
from batuta.core.world import ExcludedNodes, ForeignUsage, World, speed_at


def _node_added(world: World, event: ev.NodeAdded) -> None:
    if event.node.name in world.nodes.index:
        raise ValueError(f"node {event.node.name} exists already")
    i = world.nodes.add(event.node)
    world.layout.add(event.node)
    world.count_node(i)
    world.look_around()


def _node_changed(world: World, event: ev.NodeChanged) -> None:
    node = event.node
    if node.name not in world.nodes.index:
        return
    i = world.nodes.index[node.name]
    before = world.nodes.nodes[i]
    world.nodes.change(i, node)
    world.layout.change(i, before, node)
    for job, avoided in list(world.avoided.items()):
        # It may be another reason now, or none.
        _forgive(world, job, avoided, 1 << i)
    _refresh_node(world, i, event.time_s)
    if (before.gpu_type, before.rack) != (node.gpu_type, node.rack):
        _look_at_tenants(world, node, event.time_s)


def _look_at_tenants(world: World, node: Node, now_s: float) -> None:
    """Jobs on a node of another type, or in another rack than was thought, run at another speed."""
    jobs = world.jobs
    for row, placement in enumerate(jobs.placements):
        if placement is not None and node.name in placement.nodes:
            jobs.gpu_type[row] = type_of(world, jobs.jobs[row], placement)
            if jobs.phase_of(row) is Phase.RUNNING:
                jobs.settle(row, now_s)
                jobs.rate[row] = speed_at(world, jobs.jobs[row], placement)


def _forgive(world: World, job: JobId, avoided: ExcludedNodes, nodes: int) -> None:
    left = avoided.nodes & ~nodes
    if left:
        world.avoided[job] = avoided._replace(nodes=left)
    else:
        del world.avoided[job]


def _others_use(world: World, event: ev.OthersUse) -> None:
    if event.node not in world.nodes.index:
        return
    i = world.nodes.index[event.node]
    layout, before = world.layout, world.others.get(i, ForeignUsage())
    now = world.others[i] = ForeignUsage(mask_of(event.gpus), event.cpus_milli, event.memory_mib)
    layout.cpus_milli[i] -= now.cpus_milli - before.cpus_milli
    layout.memory_mib[i] -= now.memory_mib - before.memory_mib
    if now.gpus == before.gpus:
        world.look_beside(i, before)
        return
    # A job of ours on such a GPU keeps it: who was there first is unknown, and the backend will tell.
    _refresh_node(world, i, event.time_s)


def _held(world: World, i: int) -> int:
    """The GPUs of a node that jobs have."""
    name, held = world.nodes.nodes[i].name, 0
    for placement in world.jobs.placements:
        for node, gpus in placement.spans if placement is not None else ():
            if node == name:
                held |= mask_of(gpus)
    return held


def _healthy(world: World, i: int) -> int:
    """The GPUs of a node that jobs may have."""
    return world.sound(i) & ~world.others.get(i, ForeignUsage()).gpus


def _node_lost(world: World, event: ev.NodeLost) -> None:
    i = world.nodes.index[event.node]
    world.lost |= 1 << i
    _refresh_node(world, i, event.time_s)


def _node_returned(world: World, event: ev.NodeReturned) -> None:
    i = world.nodes.index[event.node]
    world.lost &= ~(1 << i)
    _refresh_node(world, i, event.time_s)


def _node_cordoned(world: World, event: ev.NodeCordoned) -> None:
    i = world.nodes.index[event.node]
    world.cordoned |= 1 << i
    _refresh_node(world, i, event.time_s)


def _node_uncordoned(world: World, event: ev.NodeUncordoned) -> None:
    i = world.nodes.index[event.node]
    world.cordoned &= ~(1 << i)
    _refresh_node(world, i, event.time_s)


def _gpu_failed(world: World, event: ev.GpuFailed) -> None:
    i = world.nodes.index[event.node]
    world.ill[i] = world.ill.get(i, 0) | 1 << event.gpu
    _refresh_node(world, i, event.time_s)


def _gpu_repaired(world: World, event: ev.GpuRepaired) -> None:
    i = world.nodes.index[event.node]
    world.ill[i] = world.ill.get(i, 0) & ~(1 << event.gpu)
    _refresh_node(world, i, event.time_s)


def _refresh_node(world: World, i: int, now_s: float) -> None:
    """Derives what a node can give from the facts about it: there or lost, cordoned, GPUs that are ill."""
    layout, bit, sound = world.layout, 1 << i, world.sound(i)
    before, healthy = layout.healthy[i], _healthy(world, i)
    back = healthy & ~before
    layout.healthy[i] = healthy
    layout.set_free(i, layout.free[i] & healthy | (back and back & ~_held(world, i)))
    closed = world.lost & bit or world.cordoned & bit
    layout.usable = layout.usable & ~bit if closed else layout.usable | bit
    # A GPU that others are thought to have may be held by a job of ours all the same.
    gone = (before | world.others.get(i, ForeignUsage()).gpus | (1 << world.nodes.nodes[i].gpus) - 1) & ~sound
    if gone:
        _drop_gpus(world, i, gone, now_s)
    if world.lost & bit and world.jobs.cpu_only:
        for row in range(world.jobs.n):
            lose_node(world, row, world.nodes.nodes[i].name, now_s)
    world.recount()
    world.look_around()


def _drop_gpus(world: World, i: int, gone: int, now_s: float) -> None:
    """Jobs on these GPUs lose them."""
    lost = {world.nodes.nodes[i].name: gone}
    for row, placement in enumerate(world.jobs.placements):
        if placement is not None:
            left = without(placement, lost)
            if left is not placement:
                lose(world, row, left, now_s)


def _gpus_used(world: World, event: ev.GpusUsed) -> None:
    if event.node in world.nodes.index:
        note_use(world, world.nodes.index[event.node], Usage(event.time_s, event.gpus), dict(event.jobs))


HANDLERS: dict[type, Callable[..., None]] = {
    ev.NodeAdded: _node_added,
    ev.NodeChanged: _node_changed,
    ev.OthersUse: _others_use,
    ev.NodeLost: _node_lost,
    ev.NodeReturned: _node_returned,
    ev.NodeCordoned: _node_cordoned,
    ev.NodeUncordoned: _node_uncordoned,
    ev.GpuFailed: _gpu_failed,
    ev.GpuRepaired: _gpu_repaired,
    ev.GpusUsed: _gpus_used,
}
