"""What events about nodes and their GPUs change."""

from __future__ import annotations

from collections.abc import Callable

from batuta.core import event as ev
from batuta.core.cluster import NodeName, Placement, Span
from batuta.core.holdings import release
from batuta.core.job_table import Phase
from batuta.core.world import World


def _node_added(world: World, event: ev.NodeAdded) -> None:
    if event.node.name in world.nodes.index:
        raise ValueError(f"node {event.node.name} exists already")
    i = world.nodes.add(event.node)
    world.layout.add(event.node)
    world.count_node(i)
    world.look_around()


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
    layout, bit = world.layout, 1 << i
    lost = bool(world.lost & bit)
    healthy = 0 if lost else ((1 << world.nodes.nodes[i].gpus) - 1) & ~world.ill.get(i, 0)
    gone = layout.healthy[i] & ~healthy
    back = healthy & ~layout.healthy[i]
    layout.healthy[i] = healthy
    layout.set_free(i, layout.free[i] & ~gone | back)
    layout.usable = layout.usable & ~bit if lost or world.cordoned & bit else layout.usable | bit
    if gone:
        _drop_gpus(world, i, gone, now_s)
    world.recount()
    world.look_around()


def _drop_gpus(world: World, i: int, gone: int, now_s: float) -> None:
    """Jobs on these GPUs lose them and keep the others until the next cycle repairs or stops them."""
    layout, jobs = world.layout, world.jobs
    name = world.nodes.nodes[i].name
    for row, placement in enumerate(jobs.placements):
        if placement is None or not any(s.node == name and _hit(s, gone) for s in placement.spans):
            continue
        left = _without(placement, name, gone)
        if left.size == 0:
            release(world, row, now_s)
            continue
        jobs.settle(row, now_s)
        layout.remove(placement, jobs.jobs[row])
        layout.place(left, jobs.jobs[row])
        jobs.placements[row] = left
        jobs.f("rate")[row] = 0.0
        jobs.set_gpus(row, left.size)
        jobs.set_phase(row, Phase.BROKEN)
        jobs.i("lost_gpus")[row] += placement.size - left.size


def _hit(span: Span, mask: int) -> bool:
    return any(mask >> gpu & 1 for gpu in span.gpus)


def _without(placement: Placement, node: NodeName, mask: int) -> Placement:
    spans = (
        Span(s.node, tuple(g for g in s.gpus if not (s.node == node and mask >> g & 1)))
        for s in placement.spans
    )
    return Placement(tuple(span for span in spans if span.gpus))


HANDLERS: dict[type, Callable[..., None]] = {
    ev.NodeAdded: _node_added,
    ev.NodeLost: _node_lost,
    ev.NodeReturned: _node_returned,
    ev.NodeCordoned: _node_cordoned,
    ev.NodeUncordoned: _node_uncordoned,
    ev.GpuFailed: _gpu_failed,
    ev.GpuRepaired: _gpu_repaired,
}
