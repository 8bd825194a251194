"""Why a job could not be placed, with the numbers that people need to see it for themselves."""

from __future__ import annotations

from dataclasses import replace

from batuta.core.job import Job, Spread
from batuta.core.placer import Failure
from batuta.core.reason import Reason
from batuta.placement.packing import most
from batuta.placement.room import Room

ARRANGEMENT = (Reason.FRAGMENTED, Reason.TOPOLOGY_UNMET)
"""Enough GPUs are free, but not in the right places: moving other jobs may help."""


def why(room: Room, job: Job, needs: int, gpu_type: int, held: int = 0) -> Failure:
    """The first thing that stands in the way of `needs` GPUs for a job that holds `held` of them."""
    table, extra = room.table, needs - held
    if not table.by_type[gpu_type] & table.matching(job):
        return Failure(Reason.NO_MATCHING_NODE, ())
    nodes = room.suited(job, gpu_type)
    capacity, free = room.total(nodes), room.layout.free_gpus(nodes)
    if needs > capacity and not held:
        return Failure(Reason.EXCEEDS_CLUSTER, (("needs", needs), ("capacity", capacity)))
    if extra > free:
        numbers = (("needs", extra), ("free", free), ("capacity", capacity))
        return Failure(Reason.WAITING_FOR_GPUS, numbers)
    bare = replace(job, cpus_milli_per_gpu=0, memory_mib_per_gpu=0)
    best = most(room, bare, nodes)
    if best >= extra and bare != job:
        return Failure(Reason.SHORT_OF_CPU_OR_MEMORY, (("needs", extra), ("free", free)))
    topology = job.topology
    if topology.single_numa or (topology.required and topology.within is not Spread.ANY):
        return Failure(Reason.TOPOLOGY_UNMET, (("needs", needs), ("best", best)))
    return Failure(Reason.FRAGMENTED, (("needs", extra), ("free", free)))
