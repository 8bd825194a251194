"""Who has which GPUs: a job takes them, and gives them back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from batuta.core.arrays import mask_of
from batuta.core.cluster import NodeName, Placement, Span
from batuta.core.job import DesiredState, Job
from batuta.core.job_table import Phase
from batuta.core.node_table import NO_TYPE
from batuta.core.utilisation import forget_use
from batuta.core.world import World, speed_at


def release(world: World, row: int, now_s: float) -> None:
    """Takes all GPUs from a job; it waits again."""
    jobs = world.jobs
    placement = jobs.placements[row]
    if placement is None:
        return
    jobs.settle(row, now_s)
    world.layout.remove(placement, jobs.jobs[row])
    if world.usage:
        forget_use(world, placement)
    if world.flavors:
        world.flavors.pop(jobs.ids[row], None)
    jobs.last_stop_s[row] = now_s
    jobs.hold(row, None, NO_TYPE, Phase.WAITING)
    if jobs.held_back and jobs.wish_of(row) is DesiredState.EVICT:
        jobs.hold_back(row, DesiredState.RUN)


def begin_to_leave(world: World, row: int, after: Placement | None) -> None:
    """Notes which GPUs a job is told to leave: all, or those that are not among the ones it has `after`.

    They are free for others at once, and until the job has saved its work it is still on them.
    """
    jobs = world.jobs
    held, job = jobs.placements[row], jobs.jobs[row]
    if held is None or job.cpu_only or job.share is not None:
        return
    before = world.leaving.get(job.id)
    left = held if before is None else Placement((*before.spans, *held.spans))
    if after is not None:
        left = without(left, masks_of(after))
    if left.spans:
        world.leaving[job.id] = left


def has_left(world: World, row: int) -> None:
    """Notes that a job runs: it has left other GPUs, and other jobs have left those that it is on."""
    jobs = world.jobs
    world.leaving.pop(jobs.ids[row], None)
    placement = jobs.placements[row]
    if world.leaving and placement is not None and jobs.jobs[row].share is None:
        own = masks_of(placement)
        for job, leaving in list(world.leaving.items()):
            left = without(leaving, own)
            if not left.spans:
                del world.leaving[job]
            elif left is not leaving:
                world.leaving[job] = left


def masks_of(placement: Placement) -> dict[NodeName, int]:
    """The GPUs of a placement as a set for each node."""
    found: dict[NodeName, int] = {}
    for node, gpus in placement.spans:
        found[node] = found.get(node, 0) | mask_of(gpus)
    return found


def lose_node(world: World, row: int, node: NodeName, now_s: float) -> None:
    """Takes from a CPU-only job its replicas on a node that is lost."""
    jobs = world.jobs
    held = jobs.placements[row]
    if held is not None and jobs.jobs[row].cpu_only:
        left = tuple(span for span in held.spans if span.node != node)
        if len(left) < len(held.spans):
            lose(world, row, Placement(left), now_s)


def lose(world: World, row: int, left: Placement, now_s: float) -> None:
    """Leaves a job with a part of its GPUs, until the next cycle makes it whole or stops it."""
    jobs, job, held = world.jobs, world.jobs.jobs[row], world.jobs.placements[row]
    assert held is not None
    if jobs.held_back:
        # It was to be left alone as it was, and that is over.
        jobs.hold_back(row, not_before_s=0.0)
    if not left.spans:
        release(world, row, now_s)
        return
    jobs.settle(row, now_s)
    world.layout.remove(held, job)
    world.layout.place(left, job)
    lost_gpus = jobs.lost_gpus.item(row) + held.units - left.units
    jobs.hold(row, left, type_of(world, job, left), Phase.BROKEN, lost_gpus)


def take_over(world: World, row: int, placement: Placement, now_s: float, running: bool) -> None:
    """Notes what a job was found to have. That is no start and no resize: nothing is counted anew.

    What was seen last is true. Another job that was thought to have one of these GPUs loses it, as if the GPU
    had failed; GPUs that cannot be seen, because they or their node are not there or ill, are left out. A job
    with too few of them, or with half a replica, is broken; one with too many runs until it is resized.
    """
    jobs, job, held = world.jobs, world.jobs.jobs[row], world.jobs.placements[row]
    found = _that_can_be(world, job, placement)
    if not found.spans:
        release(world, row, now_s)
        return
    jobs.settle(row, now_s)
    if held is not None:
        world.layout.remove(held, job)
        jobs.placements[row] = None
    _take_from_others(world, job, found, now_s)
    world.layout.place(found, job)
    if math.isnan(jobs.first_start_s[row]):
        jobs.first_start_s[row] = jobs.last_start_s[row] = now_s
    # A share is whole with its one GPU, whatever else was told.
    lost = max(placement.units, job.min) - found.units if job.share is None else 0
    halves = not job.cpu_only and any(len(span.gpus) % job.gpus_per_replica for span in found.spans)
    broken = lost > 0 or halves
    phase = Phase.BROKEN if broken else Phase.RUNNING if running else Phase.STARTING
    jobs.hold(row, found, type_of(world, job, found), phase, lost_gpus=max(lost, int(halves)))
    if phase is Phase.RUNNING:
        jobs.rate[row] = speed_at(world, job, found)


def _that_can_be(world: World, job: Job, placement: Placement) -> Placement:
    """A placement without GPUs that are not there or ill and nodes that are lost; one GPU alone for a share."""
    if job.cpu_only:
        there = (Span(node, ()) for node, _ in placement.spans if _is_there(world, node))
        return Placement(tuple(there))
    spans, seen = list[Span](), set[tuple[int, int]]()
    for node, gpus in placement.spans:
        i = world.nodes.index.get(node, -1)
        sound = world.sound(i) if i >= 0 else 0
        own = list[int]()
        for gpu in gpus:
            if gpu >= 0 and sound >> gpu & 1 and (i, gpu) not in seen and not (job.share and seen):
                seen.add((i, gpu))
                own.append(gpu)
        if own:
            spans.append(Span(node, tuple(own)))
    return Placement(tuple(spans))


def _is_there(world: World, node: NodeName) -> bool:
    i = world.nodes.index.get(node, -1)
    return i >= 0 and not world.lost >> i & 1


def _take_from_others(world: World, job: Job, found: Placement, now_s: float) -> None:
    """Other jobs lose these GPUs; those that share a card with the job stay beside it."""
    layout, index = world.layout, world.nodes.index
    wanted: dict[NodeName, int] = {}
    for node, gpus in found.spans:
        i = index[node]
        in_use = mask_of(gpus) & ~layout.free[i]
        if job.share is not None and (i, gpus[0]) in layout.cards:
            in_use = 0
        if in_use:
            wanted[node] = wanted.get(node, 0) | in_use
    if wanted:  # hardly ever
        lose_gpus(world, wanted, now_s)


def lose_gpus(world: World, gone: Mapping[NodeName, int], now_s: float) -> None:
    """Takes these GPUs from the jobs that have them."""
    for row, held in enumerate(world.jobs.placements):
        if held is not None:
            left = without(held, gone)
            if left is not held:
                lose(world, row, left, now_s)


def without(placement: Placement, gone: Mapping[NodeName, int]) -> Placement:
    """What is left of a placement without some GPUs of some nodes; itself if it has none of them."""
    if not any(mask_of(gpus) & gone.get(node, 0) for node, gpus in placement.spans):
        return placement
    spans = (
        Span(node, tuple(gpu for gpu in gpus if not gone.get(node, 0) >> gpu & 1)) for node, gpus in placement.spans
    )
    return Placement(tuple(span for span in spans if span.gpus))


def type_of(world: World, job: Job, placement: Placement) -> int:
    """The GPU type of a placement, that of its first worker; -1 for a CPU-only job."""
    if job.cpu_only:
        return NO_TYPE
    return world.nodes.type_of[world.nodes.index[placement.spans[0].node]]


def occupy(world: World, row: int, placement: Placement, now_s: float, phase: Phase) -> None:
    """Notes that a job has these GPUs from now on."""
    jobs = world.jobs
    jobs.settle(row, now_s)
    jobs.note_start(row, now_s, resized=phase is not Phase.STARTING)
    if jobs.held_back:
        jobs.hold_back(row, not_before_s=0.0)
    jobs.hold(row, placement, type_of(world, jobs.jobs[row], placement), phase)
